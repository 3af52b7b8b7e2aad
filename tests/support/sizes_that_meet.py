"""Edits of a lowered model that take a size which only the run of a proof could take for that of an axis."""

from collections.abc import Mapping

from impostors import Edit, entering

_VALUES = """
    zero = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> () two = Constant <value_ints = [2]> ()
    last = Constant <value_ints = [-1]> () row = Constant <value_floats = [0.0]> () all = Shape (X)
    T = Gather (all, zero) N = Gather (all, one)
"""

OF_CONSTANTS: Mapping[str, str] = {
    "a difference": """more = Constant <value_ints = [{more}]> () count = Sub (more, one)
        made = ConstantOfShape (count)""",
    "a product": """root = Constant <value_ints = [{n}]> () square = Mul (root, root)
        made = ConstantOfShape (square)""",
    "rows that are joined": """fewer = Constant <value_ints = [{less}]> () rows = ConstantOfShape (fewer)
        made = Concat <axis = 0> (rows, row)""",
    "a row again and again": """fewer = Constant <value_ints = [{less}]> () count = Add (fewer, one)
        made = Expand (row, count)""",
    "numbers in a row": """from = Constant <value = int64 {{1}}> () to = Constant <value = int64 {{{more}}}> ()
        made = Range (from, to, from)""",
    "rows that are left": """more = Constant <value_ints = [{more}]> () rows = ConstantOfShape (more)
        end = Constant <value_ints = [9223372036854775807]> () made = Slice (rows, one, end)""",
    "axes that are joined": """sizes = Constant <value_ints = [{n}, 2]> () rows = ConstantOfShape (sizes)
        made = Reshape (rows, last)""",
    "parts": "both = Constant <value_ints = [{twice}]> () rows = ConstantOfShape (both) made, rest = Split (rows)",
}
"""Nodes that make MADE, whose size follows from constants."""

OF_AXES: Mapping[str, str] = {
    "a sum": "twice = Add (T, T) often = Add (twice, T) made = ConstantOfShape (often) size = Shape (made)",
    "rows that are joined": """made = Concat <axis = 0> (X, X, X) sizes = Shape (made)
        size = Gather (sizes, zero)""",
    "axes that are joined": """wide = Concat <axis = 2> (X, X) most = Constant <value_ints = [3]> ()
        three = Slice (wide, zero, most, two) turned = Transpose <perm = [1, 0, 2]> (three)
        shape = Concat <axis = 0> (N, last) flat = Reshape (turned, shape) sizes = Shape (flat)
        size = Gather (sizes, one)""",
}
"""Nodes that make SIZE of three times T."""


def of_constants(kind: str, n: int) -> Edit:
    """Take the first rows of X, as many as follow from a number."""
    made = OF_CONSTANTS[kind].format(n=n, more=n + 1, less=n - 1, twice=2 * n)
    return entering("X", f"{_VALUES} {made} size = Shape (made) WRONG = Slice (X, zero, size, zero)")


def three_times_as_many(kind: str, size: int) -> Edit:
    """Take the first sequences, three times as many as X has steps.

    Constants leave to a proof that many steps only, and three times that many sequences.
    """
    left = [n for n in range(2, 3 * size) if n not in (4, size, 2 * size)]
    numbers = ", ".join(map(str, [*left, 4 * size]))
    nodes = f"{_VALUES} numbers = Constant <value_ints = [{numbers}]> () {OF_AXES[kind]}"
    return entering("X", f"{nodes} WRONG = Slice (X, zero, size, one)")
