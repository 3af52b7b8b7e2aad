"""Edits of a lowered model that take three times as many sequences as steps, which are all in few runs."""

from collections.abc import Mapping

from impostors import Edit, entering

_VALUES = """
    zero = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> () two = Constant <value_ints = [2]> ()
    last = Constant <value_ints = [-1]> () all = Shape (X)
    T = Gather (all, zero) N = Gather (all, one)
"""

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


def three_times_as_many(kind: str, size: int) -> Edit:
    """Take the first sequences, three times as many as X has steps.

    Constants leave to a proof that many steps only, and three times that many sequences.
    """
    left = [n for n in range(2, 3 * size) if n not in (4, size, 2 * size)]
    numbers = ", ".join(map(str, [*left, 4 * size]))
    nodes = f"{_VALUES} numbers = Constant <value_ints = [{numbers}]> () {OF_AXES[kind]}"
    return entering("X", f"{nodes} WRONG = Slice (X, zero, size, one)")
