"""Edits of a lowered model whose fault shows only at some sizes: moves by one row, one after another."""

from collections.abc import Callable
from itertools import pairwise

from impostors import Edit, entering

Far = Callable[[int, int], str]
"""Nodes that make FAR of X, by an axis and a distance: zeros at sizes up to that distance."""

_CONSTANTS = """
    none = Sub (X, X) thousandth = Constant <value = float {{0.001}}> ()
    zero = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [-1]> ()
    end = Constant <value_ints = [9223372036854775807]> () axes = Constant <value_ints = [{axis}]> ()
    all = Shape (X) size = Gather (all, axes) row = Slice (none, zero, one, axes)
"""


def at_a_distance(kind: str, axis: int, distance: int) -> Edit:
    """Let X be another if an axis is longer than a distance."""
    made = KINDS[kind](axis, distance)
    nodes = f"{_CONSTANTS.format(axis=axis)} {made} little = Mul (FAR, thousandth) WRONG = Add (X, little)"
    return entering("X", nodes)


def _rows_later(axis: int, a: str, b: str) -> str:
    """A row of zeros comes in front, the last row goes."""
    return f"{b}_in = Concat <axis = {axis}> (row, {a}) {b} = Slice ({b}_in, zero, last, axes)"


def _rows_earlier(axis: int, a: str, b: str) -> str:
    """A row of zeros comes behind, the first row goes."""
    return f"{b}_in = Concat <axis = {axis}> ({a}, row) {b} = Slice ({b}_in, one, end, axes)"


def _chain(count: int, link: Callable[[str, str], str], end: str = "FAR", first: str = "X") -> str:
    names = [first, *(f"{end}_{n}" for n in range(1, count)), end]
    return " ".join(link(a, b) for a, b in pairwise(names))


def _shifted(axis: int, far: int) -> str:
    return _chain(far, lambda a, b: _rows_later(axis, a, b))


def _cut(far: int) -> str:
    return _chain(far, lambda a, b: f"{b} = Slice ({a}, one, end, axes)", "cut")


def _cut_and_filled(axis: int, far: int) -> str:
    fill = _chain(far, lambda a, b: f"{b} = Concat <axis = {axis}> ({a}, row)", "filled", "cut")
    return f"{_cut(far)} {fill} FAR = Slice (filled, zero, size, axes)"


def _first_row_that_is_left(axis: int, far: int) -> str:
    """The first row of what is cut, with zeros behind it, goes to all rows."""
    return f"""{_cut(far)} filled = Concat <axis = {axis}> (cut, row) first = Slice (filled, zero, one, axes)
        FAR = Add (none, first)"""


def _both_ends(axis: int, far: int) -> str:
    """What is shifted to the end, times what is shifted to the front."""
    back = _chain(far // 2, lambda a, b: _rows_later(axis, a, b), "back")
    front = _chain(far - far // 2, lambda a, b: _rows_earlier(axis, a, b), "front")
    return f"{back} {front} FAR = Mul (back, front)"


def _rows_at_once(axis: int, far: int) -> str:
    """So many rows of zeros come in front, and the model takes as many as there were."""
    return f"""rows = Concat <axis = {axis}> ({", ".join(["row"] * far)})
        filled = Concat <axis = {axis}> (rows, X) FAR = Slice (filled, zero, size, axes)"""


def _in_a_loop(axis: int, far: int) -> str:
    """A Loop of so many steps shifts by one row."""
    return f"""trips = Constant <value_int = {far}> ()
        FAR = Loop <body = shift (int64 n, bool go, float[a, b, c] given) => (bool still, float[a, b, c] moved) {{
            still = Identity (go) {_rows_later(axis, "given", "moved")} }}> (trips, , X)"""


def _in_products(axis: int, far: int) -> str:
    """The matrix that shifts by one row, so often a factor."""
    product = _chain(far, lambda a, b: f"{b} = MatMul (matrix, {a})", "product", "flat")
    return f"""float_zero = Constant <value = float {{0}}> () nothing = Constant <value_int = 0> ()
        by = Constant <value_int = 1> () length = Squeeze (size, zero) numbers = Range (nothing, length, by)
        column = Unsqueeze (numbers, one) same = Equal (numbers, column) ones = Cast <to = 1> (same)
        zeros = Mul (ones, float_zero) zeros_row = Slice (zeros, zero, one, zero)
        taller = Concat <axis = 0> (zeros_row, ones) matrix = Slice (taller, zero, last, zero)
        shape = Concat <axis = 0> (size, last) flat = Reshape (X, shape) {product} FAR = Reshape (product, all)"""


def _dilated(axis: int, far: int) -> str:
    """A row of zeros comes behind each row, the first half stays; so row `far` is the first that is not zero behind
    row 0, which goes."""
    two = "two = Constant <value_ints = [2]> () fronts = Concat <axis = 0> (two, all)"
    link = (
        "{b}_wide = Unsqueeze ({a}, one) {b}_none = Sub ({b}_wide, {b}_wide) "
        "{b}_both = Concat <axis = 1> ({b}_wide, {b}_none) {b}_turned = Reshape ({b}_both, fronts) "
        "{b}_half = Gather ({b}_turned, zero) {b} = Squeeze ({b}_half, zero)"
    )
    steps = _chain(far.bit_length() - 1, lambda a, b: link.format(a=a, b=b), "thin")
    return f"""{two} {steps} top = Slice (thin, zero, one, axes) tail = Slice (none, one, end, axes)
        head = Concat <axis = {axis}> (top, tail) FAR = Sub (thin, head)"""


def _at_one_pair(axis: int, far: int) -> str:
    """X itself where both sizes are 2."""
    parts = []
    for name, of in (("T", 0), ("N", 1)):
        parts.append(f"""{name}_axis = Constant <value_ints = [{of}]> () {name}_size = Gather (all, {name}_axis)
            {name}_ones = ConstantOfShape <value = float[1] {{1}}> ({name}_size)
            {name}_row = Constant <value_floats = [0.0]> ()
            {name}_back_in = Concat <axis = 0> ({name}_row, {name}_ones)
            {name}_back = Slice ({name}_back_in, zero, last, zero)
            {name}_front_in = Concat <axis = 0> ({name}_ones, {name}_row)
            {name}_front = Slice ({name}_front_in, one, end, zero)
            {name}_inner = Mul ({name}_back, {name}_front)
            {name}_2 = ReduceMax ({name}_back) {name}_3 = ReduceMax ({name}_inner)
            {name}_is = Sub ({name}_2, {name}_3)""")
    return " ".join(parts) + " both = Mul (T_is, N_is) FAR = Mul (X, both)"


def _at_one_pair_of_rows(axis: int, far: int) -> str:
    """X itself where both sizes are 2: the row behind the first is the last."""
    parts = []
    for name, of in (("T", 0), ("N", 1)):
        parts.append(f"""{name}_axis = Constant <value_ints = [{of}]> () {name}_size = Gather (all, {name}_axis)
            {name}_zeros = ConstantOfShape ({name}_size) {name}_rest = Slice ({name}_zeros, one, end, zero)
            {name}_one = Constant <value_floats = [1.0]> () {name}_zero = Constant <value_floats = [0.0]> ()
            {name}_first = Concat <axis = 0> ({name}_one, {name}_rest)
            {name}_last = Slice ({name}_first, last, low, zero, last)
            {name}_more = Concat <axis = 0> ({name}_zero, {name}_first)
            {name}_next = Slice ({name}_more, zero, last, zero)
            {name}_both = Mul ({name}_next, {name}_last) {name}_is = Slice ({name}_both, last, end, zero)""")
    low = "low = Constant <value_ints = [-9223372036854775807]> ()"
    return f"{low} {' '.join(parts)} both = Mul (T_is, N_is) FAR = Mul (X, both)"


def _between_ends(name: str, size: str, far: int) -> str:
    """1 in the rows that are so far from both ends of an axis."""

    def link(a: str, b: str) -> str:
        inputs, cut = (f"{name}_0, {a}", "zero, last") if name + "_front" in b else (f"{a}, {name}_0", "one, end")
        return f"{b}_in = Concat <axis = 0> ({inputs}) {b} = Slice ({b}_in, {cut}, zero)"

    front, back = (_chain(far, link, f"{name}_{side}", f"{name}_ones") for side in ("front", "back"))
    return f"""{name}_ones = ConstantOfShape <value = float[1] {{1}}> ({size})
        {name}_0 = Constant <value_floats = [0.0]> () {front} {back} {name} = Mul ({name}_front, {name}_back)"""


_BOTH = "T = Gather (all, zero) N = Gather (all, one) pair = Constant <value_ints = [1, 2]> ()"


def _more_sequences_than_steps(axis: int, far: int) -> str:
    """X itself, far from both ends, where the batch is larger than the length."""
    return f"""{_BOTH} {_between_ends("middle", "T", far // 2)} fewer = Less (T, N) wide = Unsqueeze (middle, pair)
        inner = Mul (X, wide) FAR = Where (fewer, inner, none)"""


def _steps_past_the_sequences(axis: int, far: int) -> str:
    """X itself at steps from the batch size on, in rows that are far from both ends: step t is row t // N."""
    return f"""{_BOTH} {_between_ends("middle", "N", far // 2)} steps = ConstantOfShape <value = float[1] {{1}}> (T)
        nothing = Constant <value_floats = [0.0]> () later_in = Concat <axis = 0> (nothing, steps)
        later = Slice (later_in, zero, last, zero) column = Unsqueeze (later, one) both = Concat <axis = 0> (T, N)
        table = Expand (column, both) flat = Reshape (table, last) first = Constant <value = int64 {{0}}> ()
        by = Constant <value = int64 {{1}}> () count = Squeeze (T, zero) numbers = Range (first, count, by)
        past = Gather (flat, numbers) rows = Unsqueeze (past, one) mask = Mul (rows, middle)
        third = Constant <value_ints = [2]> () wide = Unsqueeze (mask, third) FAR = Mul (X, wide)"""


def _in_the_middle(axis: int, far: int) -> str:
    """X itself in the row in the middle of an even number, far from both ends: row 2 t - T of a row of zeros."""
    return f"""{_BOTH} {_between_ends("middle", "T", far // 2)} steps = ConstantOfShape <value = float[1] {{1}}> (T)
        nothing = Constant <value_floats = [0.0]> () later_in = Concat <axis = 0> (nothing, steps)
        later = Slice (later_in, zero, last, zero) top = Sub (steps, later)
        first = Constant <value = int64 {{0}}> () by = Constant <value = int64 {{1}}> ()
        count = Squeeze (T, zero) numbers = Range (first, count, by) twice = Add (numbers, numbers)
        index = Sub (twice, T) half = Gather (top, index) mask = Mul (half, middle)
        wide = Unsqueeze (mask, pair) FAR = Mul (X, wide)"""


def _where_counts_meet(axis: int, far: int) -> str:
    """X itself in the row in the middle of an even number, far from both ends: there it counts as far from the end,
    so a counter of steps is what another, which runs from the end, was a row before."""
    rows = ", ".join(["nothing"] * (far // 2))
    return f"""{_BOTH} ones = ConstantOfShape <value = float[1] {{1}}> (T)
        nothing = Constant <value_floats = [0.0]> () front_in = Concat <axis = 0> ({rows}, ones)
        front = Slice (front_in, zero, T, zero)
        gone = Constant <value_ints = [{far // 2}]> () back_in = Concat <axis = 0> (ones, {rows})
        back = Slice (back_in, gone, end, zero) middle = Mul (front, back) first = Constant <value = int64 {{0}}> ()
        by = Constant <value = int64 {{1}}> () count = Squeeze (T, zero) numbers = Range (first, count, by)
        low = Constant <value_ints = [-9223372036854775807]> () down = Slice (numbers, last, low, zero, last)
        later_in = Concat <axis = 0> (zero, down) later = Slice (later_in, zero, T, zero)
        go = Constant <value = bool {{1}}> () meet = Loop <body = each (int64 n, bool going) =>
            (bool still, float is) {{ still = Identity (going) other = Gather (later, n) same = Equal (other, n)
            is = Cast <to = 1> (same) }}> (count, go)
        mask = Mul (meet, middle) wide = Unsqueeze (mask, pair) FAR = Mul (X, wide)"""


def _data_in_front(axis: int, far: int) -> str:
    """A mask is moved back by rows of numbers, then by rows of data; with it in reverse, it leaves the middle."""
    rows = ", ".join(["nothing"] * (far // 2)), ", ".join(["data"] * (far // 2))
    return f"""{_BOTH} ones = ConstantOfShape <value = float[1] {{1}}> (T)
        nothing = Constant <value_floats = [0.0]> () data = Relu (nothing)
        low = Constant <value_ints = [-9223372036854775807]> ()
        once_in = Concat <axis = 0> ({rows[0]}, ones) once = Slice (once_in, zero, T, zero)
        twice_in = Concat <axis = 0> ({rows[1]}, once) twice = Slice (twice_in, zero, T, zero)
        back = Slice (twice, last, low, zero, last)
        mask = Mul (twice, back) wide = Unsqueeze (mask, pair) FAR = Mul (X, wide)"""


def _joined(axis: int, far: int) -> str:
    """X itself in later rows where the batch size is 1: a row of both axes as one is a step there."""
    return f"""{_BOTH} count = Mul (T, N) both = Concat <axis = 0> (T, N) top = Constant <value_floats = [1.0]> ()
        steps = ConstantOfShape <value = float[1] {{1}}> (T) column = Unsqueeze (steps, one)
        table = Expand (column, both) flat = Reshape (table, last) row_0 = Constant <value_floats = [0.0]> ()
        later_in = Concat <axis = 0> ({", ".join(["row_0"] * (far // 2))}, flat)
        later = Slice (later_in, zero, count, zero) apart = Reshape (later, both)
        first = Gather <axis = 1> (apart, zero) moved = Squeeze (first, one)
        rows = ConstantOfShape (N) rest = Slice (rows, one, end, zero) front = Concat <axis = 0> (top, rest)
        is_one = Gather (front, last) mask = Mul (moved, is_one) wide = Unsqueeze (mask, pair)
        FAR = Mul (X, wide)"""


def _counted_down(axis: int, far: int) -> str:
    """X itself at longer lengths: the first number of those that count down to 0 is the length."""
    return f"""count = Gather (all, zero) first = Squeeze (count, zero) nothing = Constant <value = int64 {{0}}> ()
        down = Constant <value = int64 {{-1}}> () numbers = Range (first, nothing, down)
        length = Gather (numbers, nothing) limit = Constant <value = int64 {{{far}}}> ()
        longer = Less (limit, length) FAR = Where (longer, X, none)"""


def _by_a_state(first: str, body: str) -> Far:
    """X itself from the step on in which a state of a Scan says so."""

    def nodes(axis: int, far: int) -> str:
        return f"""steps_far = Constant <value_float = {far}.0> () {first.format(far=far)}
            last_state, FAR = Scan <num_scan_inputs = 1, body = counted (float[s] state, float[b, c] x) =>
                (float[s] next, float[b, c] y) {{{body} y = Mul (x, now)}}> (first_state, X)"""

    return nodes


_counted = _by_a_state(
    "first_state = Constant <value_floats = [0.0]> ()",
    "by = Constant <value_float = 1.0> () next = Add (state, by) over = Sub (state, steps_far) now = Relu (over)",
)
_passed_on = _by_a_state(
    """float_0 = Constant <value_floats = [0.0]> () float_1 = Constant <value_floats = [1.0]> ()
    lead = Constant <value_ints = [{far}]> () zeros = ConstantOfShape (lead)
    first_state = Concat <axis = 0> (float_1, zeros)""",
    """kept = Slice (state, zero, last, zero) next = Concat <axis = 0> (float_0, kept)
    now = Slice (state, last, end, zero)""",
)


def _in_loops(axis: int, far: int) -> str:
    """X itself at longer lengths: so many Loops each take the row behind their own, one number."""

    def link(a: str, b: str) -> str:
        return f"""{b}_in = Concat <axis = 0> ({a}, nothing) {b} = Loop <body = each_{b} (int64 n, bool going) =>
            (bool still, float row) {{ still = Identity (going) by = Constant <value = int64 {{1}}> ()
            next = Add (n, by) row = Gather ({b}_in, next) }}> (count, go)"""

    chain = _chain(far, link, "late", "ones")
    return f"""{_BOTH} count = Squeeze (T, zero) go = Constant <value = bool {{1}}> ()
        nothing = Constant <value_floats = [0.0]> () ones = ConstantOfShape <value = float[1] {{1}}> (T)
        {chain} first = Gather (late, zero) FAR = Mul (X, first)"""


KINDS: dict[str, Far] = {
    "in loops": _in_loops,
    "shifted": _shifted,
    "cut and filled": _cut_and_filled,
    "first row that is left": _first_row_that_is_left,
    "both ends": _both_ends,
    "rows at once": _rows_at_once,
    "in a loop": _in_a_loop,
    "in products": _in_products,
    "dilated": _dilated,
    "at one pair": _at_one_pair,
    "at one pair of rows": _at_one_pair_of_rows,
    "more sequences than steps": _more_sequences_than_steps,
    "steps past the sequences": _steps_past_the_sequences,
    "in the middle": _in_the_middle,
    "where counts meet": _where_counts_meet,
    "data in front": _data_in_front,
    "joined": _joined,
    "counted down": _counted_down,
    "counted by a state": _counted,
    "passed on by states": _passed_on,
}

AXES = dict.fromkeys(list(KINDS)[-13:], (0,))
"""The axes along which some kinds are made."""
