"""Edits of a lowered model whose fault depends on the lengths of several sequences."""

import numpy as np
from impostors import Edit, entering

_VALUES = """
    zero = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [-1]> () low = Constant <value_ints = [-9223372036854775807]> ()
    all = Shape (X) T = Gather (all, zero) own = Cast <to = 7> (sequence_lens)
    first = Gather (own, zero) final = Gather (own, last)
    opposite = Slice (own, last, low, zero, last)
    none = Constant <value = int64 {0}> () by = Constant <value = int64 {1}> () end = Squeeze (T, zero)
    steps = Range (none, end, by) step = Unsqueeze (steps, one)
    N = Gather (all, one) to_N = Squeeze (N, zero) rows = Range (none, to_N, by)
"""

CONDITIONS = {
    "shorter than the first": "a = Less (zero, own) b = Less (own, first) c = Less (first, T)",
    "shorter than its opposite": "a = Less (zero, own) b = Less (own, opposite) c = Less (opposite, T)",
    "shorter than the longest": """longest = ReduceMax <keepdims = 0> (own)
        a = Less (zero, own) b = Less (own, longest) c = Less (longest, T)""",
    "steps between two ends": "a = LessOrEqual (final, step) b = Less (step, first) c = Less (zero, final)",
    "a size that is a length": """made = ConstantOfShape (first) length = Shape (made)
        a = Less (zero, own) b = Less (own, length) c = Less (length, T)""",
    "two numbers": """number = Constant <value_ints = [2]> () next = Constant <value_ints = [4]> ()
        a = Equal (first, number) b = Equal (final, next) c = GreaterOrEqual (own, zero)""",
}


def where_lengths_meet(condition: str) -> Edit:
    """Let rows of X be half as large again where all of a condition holds."""
    return entering(
        "X",
        f"""{_VALUES} {condition} ab = And (a, b) abc = And (ab, c) deep = Unsqueeze (abc, last)
        half = Constant <value = float {{0.5}}> () nothing = Constant <value = float {{0}}> ()
        part = Where (deep, half, nothing) more = Mul (X, part) WRONG = Add (X, more)""",
    )


def by_the_next_length() -> Edit:
    """Let a sequence be as long as the next one less a step, after 0 as long as X; the last one as it is.

    That is as long as it is itself wherever each sequence is a step longer than the one before it.
    """
    return entering(
        "sequence_lens",
        f"""{_VALUES} least = Constant <value_ints = [0]> () far = Constant <value_ints = [9223372036854775807]> ()
        more = Add (final, one) others = Slice (own, one, far, zero) next = Concat <axis = 0> (others, more)
        less = Sub (next, one) under = Less (less, least) length = Where (under, T, less)
        WRONG = Cast <to = 6> (length)""",
    )


def where_it_is_half() -> Edit:
    """Let X be more where the row of a length is the same one from both ends: at odd lengths of X."""
    return entering(
        "X",
        f"""{_VALUES} least = Constant <value_ints = [0]> () own_row = Unsqueeze (own, zero)
        here = Equal (step, own_row) front = Cast <to = 1> (here) back = Slice (front, last, low, zero, last)
        both = Mul (front, back) flat = Reshape (both, last) inside = Less (own, T)
        place = Where (inside, own, least) row = Mul (place, N) index = Add (row, rows)
        half = Gather (flat, index) some = Less (least, own)
        ones = Cast <to = 1> (some) part = Mul (half, ones) little = Constant <value = float {{0.01}}> ()
        less = Mul (part, little) wide = Unsqueeze (less, one) more = Mul (X, wide) WRONG = Add (X, more)""",
    )


def where_both_ends_are_last() -> Edit:
    """Let X be more in a sequence as long as X, if the opposite one is too: a row of a shape says so."""
    return entering(
        "X",
        f"""{_VALUES} start = Constant <value_ints = [0]> () is_last = Equal (own, T)
        is_opposite = Slice (is_last, last, low, start, last) place = Cast <to = 7> (is_opposite)
        empty = Slice (X, start, start, one) sizes = Shape (empty) size = Gather (sizes, place)
        is_none = Equal (size, start) both = And (is_none, is_last) wide = Unsqueeze (both, one)
        more = Add (X, X) WRONG = Where (wide, more, X)""",
    )


def random_condition(rng: np.random.Generator) -> str:
    """Three comparisons of lengths, sizes and steps."""
    values = ("own", "first", "final", "opposite", "zero", "T", "step")
    operators = ("Less", "LessOrEqual", "Equal")
    of = [(name, rng.choice(operators), *rng.choice(values, 2, replace=False)) for name in "abc"]
    return " ".join(f"{name} = {operator} ({x}, {y})" for name, operator, x, y in of)
