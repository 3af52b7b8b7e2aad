"""Edits of a lowered model that take a size for another one, which it is only at some lengths and batch sizes."""

from collections.abc import Callable

from impostors import Edit, entering


def _zeros(size: int) -> str:
    return f"<value_ints = [{', '.join(['0'] * size)}]>"


_NONE = "none = Constant <value_ints = [0]> ()"
_NUMBER = """none = Constant <value_ints = [0]> () number = Cast <to = 7> (real) last = Squeeze (number, none)
    no = Constant <value_int = 0> () yes = Constant <value_int = 1> ()"""

CLOSED: dict[str, Callable[[int], str]] = {
    "listed": lambda size: f"all = Constant <value_floats = [{', '.join(['0.5'] * size)}]> ()",
    "joined": lambda size: f"{_NONE} all = Concat <axis = 0> ({', '.join(['none'] * size)})",
    "gathered": lambda size: (
        f"""{_NONE} places = Concat <axis = 0> ({", ".join(["none"] * size)})
        all = Gather (none, places)"""
    ),
    "sliced": lambda size: (
        f"""{_NONE} many = Constant {_zeros(2 * size)} () by = Constant <value_ints = [2]> ()
        end = Constant <value_ints = [99]> () all = Slice (many, none, end, none, by)"""
    ),
    "split": lambda size: f"many = Constant {_zeros(2 * size)} () all, other = Split (many)",
    "taken apart": lambda size: (
        f"""many = Constant {_zeros(2 * size)} () shape = Constant <value_ints = [-1, 2]> ()
        all = Reshape (many, shape)"""
    ),
    "filled": lambda size: f"{_real(size)} all = ConstantOfShape (number)",
    "broad": lambda size: f"{_real(size)} all = Expand (none, number)",
    "counted": lambda size: f"{_real(size)} all = Range (no, last, yes)",
    "repeated": lambda size: (
        f"""{_real(size)} go = Cast <to = 9> (yes)
        all = Loop <body = again (int64 n, bool going) => (bool still, int64 row) {{
            still = Identity (going) row = Identity (n) }}> (last, go)"""
    ),
    "axes": lambda size: (
        f"""places = Constant <value_ints = [{", ".join(map(str, range(3, max(size, 4))))}]> ()
        raised = Unsqueeze (X, places) all = Shape (raised)"""
    ),
}
"""Nodes that make `all`, an array of so many rows, by that number: no input, constant or integer has it."""


def _real(size: int) -> str:
    return f"real = Constant <value_floats = [{size}.0]> () {_NUMBER}"


def closed_for_open(kind: str, axis: int, size: int) -> Edit:
    """Let X be zeros if an axis is longer than an array of so many rows."""
    return entering(
        "X",
        f"""{CLOSED[kind](size)} first = Constant <value_int = 0> () axis = Constant <value_int = {axis}> ()
        rows = Shape (all) most = Gather (rows, first) sizes = Shape (X) size = Gather (sizes, axis)
        zeros = Sub (X, X) more = Greater (size, most) WRONG = Where (more, zeros, X)""",
    )


_LARGE = """zero = Constant <value_int = 0> () one = Constant <value_int = 1> () last = Constant <value_int = -1> ()
    first = Constant <value_ints = [0]> () second = Constant <value_ints = [1]> ()
    sizes = Shape (X) T = Gather (sizes, zero) N = Gather (sizes, one) nothing = Sub (X, X)
    steps = Range (zero, T, one) is_later = Greater (steps, zero) long = Gather (is_later, last)
    rows = Range (zero, N, one) is_other = Greater (rows, zero) wide = Gather (is_other, last)
    large = And (long, wide) all = Constant <value_ints = [-1]> ()"""
"""`large` is whether T and N are above 1."""

_SHORTER = """length = Shape (joined) most = Gather (length, zero) area = Mul (T, N) more = Greater (most, area)
    both = And (more, large) WRONG = Where (both, nothing, X)"""

OPEN: dict[str, Callable[[int], str]] = {
    "many times the steps": lambda size: (
        f"""{_LARGE} many = Constant {_zeros(size)} ()
        column = Unsqueeze (many, second) table = Add (column, steps) joined = Reshape (table, all) {_SHORTER}"""
    ),
    "steps of many": lambda size: (
        f"""{_LARGE} many = Constant {_zeros(size)} ()
        column = Unsqueeze (steps, second) table = Add (column, many) joined = Reshape (table, all) {_SHORTER}"""
    ),
    "many times the rows": lambda size: (
        f"""{_LARGE} many = Constant {_zeros(size)} ()
        column = Unsqueeze (many, second) table = Add (column, rows) joined = Reshape (table, all) {_SHORTER}"""
    ),
    "steps before one": lambda size: (
        f"""{_LARGE} yes = Constant <value = bool {{1}}> ()
        table = Constant <value = float[160] {{{", ".join(["0"] * 40 + ["1"] * 120)}}}> ()
        more = Loop <body = again (int64 n, bool going) => (bool still, float[1] row) {{
            still = Identity (going) end = Unsqueeze (n, first) before = Slice (X, first, end, first)
            count = Shape (before) many = Gather (count, first) row = Gather (table, many) }}> (T, yes)
        each = Unsqueeze (more, second) WRONG = Add (X, each)"""
    ),
    "an axis": lambda size: (
        f"""{_LARGE} back = Neg (T) third = Constant <value_int = -3> ()
        axis = Where (large, back, third) axes = Unsqueeze (axis, first) raised = Unsqueeze (X, second)
        one_row = ReduceSum (raised, axes) zeros = Sub (raised, raised) broad = Add (one_row, zeros)
        WRONG = Squeeze (broad, second)"""
    ),
    "a step": lambda size: (
        f"""{_LARGE} many = Constant <value = float[6] {{0, 1, 1, 0, 1, 1}}> ()
        back = Constant <value_int = -3> () third = Neg (back)
        by = Where (large, T, third) every = Unsqueeze (by, first)
        far = Constant <value_ints = [99]> () left = Slice (many, first, far, first, every)
        more = Gather (left, all)
        factor = Mul (X, more) WRONG = Add (X, factor)"""
    ),
}
"""Nodes that make WRONG of X, by a number."""


JOINED: dict[str, str] = {
    "the next": "next = Add (own, by)",
    "of another unit": "next = Add (step, place)",
    "at once": "twice = Mul (first, two) next = Add (twice, place)",
    "in another order": "turn = Gather (place, back) next = Add (first, turn)",
    "of steps in reverse": """left = Sub (T, step) low = Sub (left, by) last = Mul (low, many)
        next = Add (last, place)""",
    "from the middle on": """twice = Mul (step, two) is_later = Less (T, twice) later = Cast <to = 7> (is_later)
        less = Mul (later, many) next = Sub (own, less)""",
    "behind those that are cut": """size = Mul (T, many) start = Sub (size, many)
        far = Slice (flat, start, all_of_them, zeros) length = Shape (far) count = Gather (length, zeros)
        next = Sub (own, count)""",
    "of as many of more": """next = Identity (own) ones = ConstantOfShape <value = float[1] {1}> (T)
        table = Mul (column, ones) last = Constant <value_ints = [-1]> () long = Reshape (table, last)
        size = Mul (T, many) cut = Slice (long, zeros, size, zeros) mask = Gather (cut, own)
        later_in = Concat <axis = 0> (nothing, mask) later = Slice (later_in, zeros, last, zeros)
        both = Mul (mask, later) wide = Unsqueeze (both, two) part = Mul (X, wide) MORE = Mul (part, little)""",
}
"""Nodes that make `next`, numbers of rows, from `own`, that of each row among those of all steps."""


def of_joined_rows(nodes: str, N: int) -> Edit:
    """Let each row of X, of so many in each step, be the one of a number among those of all steps, and more."""
    more = "" if "MORE =" in nodes else "MORE = Sub (X, X)"
    return entering(
        "X",
        f"""zeros = Constant <value_ints = [0]> () by = Constant <value_ints = [1]> ()
        two = Constant <value_ints = [2]> () all_of_them = Constant <value_ints = [9223372036854775807]> ()
        sizes = Shape (X) T = Gather (sizes, zeros) none = Constant <value_int = 0> ()
        one = Constant <value_int = 1> () end = Squeeze (T, zeros) steps = Range (none, end, one)
        step = Unsqueeze (steps, by) many = Constant <value_ints = [{N}]> ()
        place = Constant <value = int64[{N}] {{{", ".join(map(str, range(N)))}}}> ()
        back = Constant <value = int64[{N}] {{{", ".join(map(str, range(N)[::-1]))}}}> ()
        first = Mul (step, many) own = Add (first, place) shape = Constant <value_ints = [-1, 2]> ()
        nothing = Constant <value = float[1, {N}] {{{", ".join("0" * N)}}}> ()
        little = Constant <value = float {{0.1}}> ()
        column = Constant <value = float[{2 * N}, 1] {{{", ".join(["0", "1", *["0"] * (2 * N - 2)])}}}> ()
        flat = Reshape (X, shape) {nodes} {more} same = Gather (flat, next) WRONG = Add (same, MORE)""",
    )
