"""Random masks of steps and sequences, by operations that a proof follows, and by some that it must not."""

import re
from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
from impostors import Edit, entering
from onnx import parser
from onnxruntime.capi import onnxruntime_pybind11_state as state
from running import session

_INVALID = (state.Fail, state.InvalidArgument, state.InvalidGraph, state.RuntimeException)

_VALUES = """
    zero = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [-1]> () low = Constant <value_ints = [-9223372036854775807]> ()
    end = Constant <value_ints = [9223372036854775807]> () all = Shape (X)
    T = Gather (all, zero) N = Gather (all, one)
    first = Constant <value = int64 {0}> () by = Constant <value = int64 {1}> ()
    to_T = Squeeze (T, zero) to_N = Squeeze (N, zero) steps = Range (first, to_T, by)
    rows = Range (first, to_N, by)
    float_0 = Constant <value_floats = [0.0]> () float_1 = Constant <value_floats = [1.0]> ()
    ones_T = ConstantOfShape <value = float[1] {1}> (T) ones_N = ConstantOfShape <value = float[1] {1}> (N)
    column = Unsqueeze (ones_T, one) row = Unsqueeze (ones_N, zero) ones = Mul (column, row)
"""

_LATER = "@_in = Concat <axis = 0> (float_0, {A}) @ = Slice (@_in, zero, last, zero)"
_EARLIER = "@_in = Concat <axis = 0> ({A}, float_0) @ = Slice (@_in, one, end, zero)"
_TABLE = "@_T = Unsqueeze ({index T}, one) @_N = Unsqueeze ({index N}, zero)"

OPERATIONS = [
    *3 * [("A", _LATER), ("A", _EARLIER)],
    ("A", _LATER.replace("float_0", "float_1")),
    ("A", _EARLIER.replace("float_0", "float_1")),
    ("A", "@ = Slice ({A}, last, low, zero, last)"),
    ("A", "@ = Sub (float_1, {A})"),
    *2 * [("A", "@ = Mul ({A}, {A})"), ("A", "@ = Max ({A}, {A})")],
    *2 * [("A", "@ = Gather ({A}, {index A})")],
    ("A", "@ = Gather ({B}, {index A})"),
    *[("A", f"@_is = {op} ({{index A}}, {{index A}}) @ = Cast <to = 1> (@_is)") for op in ("Less", "Equal")],
    *[("A", f"@_is = {op} ({{index A}}, {{size}}) @ = Cast <to = 1> (@_is)") for op in ("Less", "Equal")],
    *2 * [("T", f"@_of = Gather <axis = 1> ({{both}}, {end}) @ = Squeeze (@_of, one)") for end in ("zero", "last")],
    *2
    * [("N", f"@_of = Gather <axis = 0> ({{both}}, {end}) @ = Squeeze (@_of, zero)") for end in ("zero", "last")],
    ("T", "@ = ReduceSum <keepdims = 0> ({both}, one)"),
    ("A", "@_flat = Reshape ({both}, last) @ = Gather (@_flat, {index A})"),
    ("A", "@_at = Mul ({index A}, {size}) @_flat = Reshape ({both}, last) @ = Gather (@_flat, @_at)"),
    ("A", "@_turned = Transpose ({both}) @_flat = Reshape (@_turned, last) @ = Gather (@_flat, {index A})"),
    *[("both", f"{_TABLE.replace('index ', '')} @ = {op} (@_T, @_N)") for op in ("Mul", "Mul", "Mul", "Max")],
    *2 * [("both", "@ = Mul ({both}, {both})")],
    *[("both", f"{_TABLE} @_is = {op} @ = Cast <to = 1> (@_is)") for op in ("Less (@_T, @_N)", "Less (@_N, @_T)")],
    *[("index A", f"@ = {op} ({{index A}}, {{{by}}})") for op in ("Add", "Sub") for by in ("index A", "size")],
    ("index A", "@ = Sub ({size}, {index A})"),
    ("index A", "@_is = Cast <to = 9> ({A}) @ = Where (@_is, {index A}, {size})"),
    *[("size", f"@ = {op} ({{size}}, {{size}})") for op in ("Add", "Sub")],
]
"""Kinds and nodes: a mask of an axis A, not B, or of both; an index for each row of an axis; a size."""

SMALL = ((1, 1), (1, 2), (2, 1), (2, 2), (3, 2))


class RandomMask:
    """Nodes that make MASK, of steps and sequences of X; it is 0 near some ends of both."""

    def __init__(self, rng: np.random.Generator, *, lengths: bool) -> None:
        self.rng, self.lengths = rng, lengths
        self.nodes = [_VALUES, *["lengths = Cast <to = 7> (sequence_lens)"] * lengths]
        self.values = {
            "T": ["ones_T"],
            "N": ["ones_N"],
            "both": ["ones"],
            "size": ["T", "N", "zero", "one", "last"],
        }
        self.values |= {"index T": ["steps"], "index N": ["rows", *["lengths"] * lengths]}
        for _ in range(rng.integers(5, 22)):
            self._add(*OPERATIONS[rng.integers(len(OPERATIONS))])
        kind = ("T", "N", "both", "both")[rng.integers(4)]
        wide = {"T": "@ = Unsqueeze ({T}, one)", "N": "@ = Unsqueeze ({N}, zero)", "both": "@ = Identity ({both})"}
        parts = [self._add("wide", wide[kind])]
        for axis, ones in (("T", "ones_T"), ("N", "ones_N")):
            far = int(rng.integers(4))
            for shift in (_LATER, _EARLIER):
                self.values[axis].append(ones)
                inner = [self._add(axis, shift.replace("A", axis), last=True) for _ in range(far)]
                parts += [self._add("wide", wide[axis], last=True)] * bool(inner)
        self.nodes += [
            f"wide_{n + 1} = Mul ({'wide_' * bool(n)}{n or 'ones'}, {part})" for n, part in enumerate(parts)
        ]
        self.nodes.append(f"MASK = Identity (wide_{len(parts)})")

    def _add(self, kind: str, text: str, *, last: bool = False) -> str:
        """Add nodes, of values that are drawn, of the newer ones more often; or of the last ones."""
        axis, other = self.rng.permutation(["T", "N"])
        kind, name = kind.replace("A", axis), f"value_{len(self.nodes)}"

        def drawn(of: re.Match[str]) -> str:
            values = self.values[of[1].replace("A", axis).replace("B", other)]
            place = 1 if last else min(int(self.rng.geometric(0.5)), len(values))
            return values[-place]

        self.nodes.append(re.sub("{([^}]*)}", drawn, text).replace("@", name))
        self.values.setdefault(kind, []).append(name)
        return name

    def is_hidden(self, large: Sequence[tuple[int, int]]) -> bool:
        """Whether it is 0 at the smallest sizes, and not at one of these."""
        given = "float[T, N, 1] X" + ", int32[N] sequence_lens" * self.lengths
        head = f'<ir_version: 8, opset_import: ["": 17]> mask ({given}) => (float[T, N] MASK)'
        try:
            runs = session(parser.parse_model(f"{head} {{ {' '.join(self.nodes)} }}"))
            at_small, at_large = ([self._shows(runs, size) for size in sizes] for sizes in (SMALL, large))
        except _INVALID:
            return False
        return any(at_large) and not any(at_small)

    def _shows(self, runs: ort.InferenceSession, sizes: tuple[int, int]) -> bool:
        X = {"X": np.ones((*sizes, 1), np.float32)}
        drawn = (self.rng.integers(0, sizes[0] + 1, sizes[1], np.int32) for _ in range(3 if self.lengths else 1))
        return any(runs.run(None, X | {"sequence_lens": each} if self.lengths else X)[0].any() for each in drawn)


def under_mask(mask: RandomMask) -> Edit:
    """Let X be a little more where a mask is not 0."""
    nodes = f"""{" ".join(mask.nodes)} little = Constant <value = float {{0.001}}> ()
        third = Constant <value_ints = [2]> () deep = Unsqueeze (MASK, third) part = Mul (deep, little)
        more = Mul (X, part) WRONG = Add (X, more)"""
    return entering("X", nodes)
