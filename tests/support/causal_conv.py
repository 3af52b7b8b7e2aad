"""Models of one CausalConvWithState, and what it computes in float64, written independently of the package."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from cases import DTYPES, Array
from graphs import MS, Graph


@dataclass(frozen=True)
class ConvCase:
    """A node and its inputs.

    Attributes:
        channels: The sizes of the axes of the channels; several with channels_last.
        optional: The optional inputs that are connected.
        constants: The inputs that are initializers.
        symbolic: Whether batch size and length are open.
    """

    domain: str = ""
    batch: int = 2
    length: int = 5
    channels: tuple[int, ...] = (3,)
    kernel: int = 4
    activation: str | None = "silu"
    optional: tuple[str, ...] = ("bias", "past_state")
    constants: tuple[str, ...] = ("weight", "bias")
    dtype: str = "float32"
    dilation: int = 1
    channels_last: bool = False
    symbolic: bool = False
    opset: int = 0

    @property
    def state_length(self) -> int:
        return (self.kernel - 1) * self.dilation

    def of_channels(self, length: int) -> tuple[int, ...]:
        if self.channels_last:
            return (self.batch, length, *self.channels)
        return (self.batch, *self.channels, length)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        C = int(np.prod(self.channels))
        every = {
            "input": self.of_channels(self.length),
            "weight": (C, 1, self.kernel),
            "bias": (C,),
            "past_state": self.of_channels(self.state_length),
        }
        return {s: shape for s, shape in every.items() if s in ("input", "weight", *self.optional)}


def arrays(case: ConvCase, seed: int = 0) -> dict[str, Array]:
    """Return all inputs of a case."""
    rng, numpy_type = np.random.default_rng(seed), DTYPES[case.dtype]
    return {s: rng.standard_normal(shape).astype(numpy_type) for s, shape in case.shapes.items()}


def feed(case: ConvCase, seed: int = 0) -> dict[str, Array]:
    """Return the inputs that are no initializers."""
    return {s: a for s, a in arrays(case, seed).items() if s not in case.constants}


def expected(case: ConvCase, given: dict[str, Array] | None = None, seed: int = 0) -> dict[str, Array]:
    """Return the outputs in float64, frame by frame and channel by channel."""
    held = {s: np.asarray(a, np.float64) for s, a in {**arrays(case, seed), **(given or {})}.items()}
    C = int(np.prod(case.channels))
    flat = {
        s: np.moveaxis(held[s].reshape(*held[s].shape[:2], C), 2, 1) if case.channels_last else held[s]
        for s in ("input", "past_state")
        if s in held
    }
    x = flat["input"]
    past = flat.get("past_state", np.zeros((x.shape[0], C, case.state_length)))
    frames = np.concatenate([past, x], 2)
    y = np.zeros(x.shape)
    for n, c, t in np.ndindex(*x.shape):
        total = held["bias"][c] if "bias" in held else 0.0
        for j in range(case.kernel):
            total += held["weight"][c, 0, j] * frames[n, c, t + j * case.dilation]
        y[n, c, t] = total / (1 + np.exp(-total)) if case.activation in ("silu", "swish") else total
    state = frames[:, :, x.shape[2] :]
    found = {"output": y, "present_state": state}
    if case.channels_last:
        return {s: np.moveaxis(a, 1, 2).reshape(a.shape[0], a.shape[2], *case.channels) for s, a in found.items()}
    return found


def model(case: ConvCase, seed: int = 0, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node, named "conv"; attributes override those of the case."""
    dtype, graph = DTYPES[case.dtype], Graph()
    for symbol, array in arrays(case, seed).items():
        if symbol in case.constants:
            graph.constant(array, name=symbol)
        else:
            graph.input(symbol, _declared(case, symbol, array.shape), dtype)
    given: dict[str, Any] = {"activation": case.activation} if case.activation else {}
    if case.domain:
        given |= {"dilation": case.dilation} if case.dilation > 1 else {}
        given |= {"channels_last": 1} if case.channels_last else {}
    names = ["input", "weight", *(s if s in case.optional else "" for s in ("bias", "past_state"))]
    outputs = {"output": "input", "present_state": "past_state"}
    graph.node(
        "CausalConvWithState", *names, outputs=[*outputs], name="conv", domain=case.domain, **(given | attributes)
    )
    every = replace(case, optional=("bias", "past_state")).shapes
    for symbol, like in outputs.items():
        graph.output(symbol, _declared(case, like, every[like]), dtype)
    opset = case.opset or (21 if case.domain else 27)
    return graph.model(opset, [case.domain] if case.domain else [], ir_version=10)


def _declared(case: ConvCase, symbol: str, shape: tuple[int, ...]) -> list[int | str]:
    if not case.symbolic:
        return list(shape)
    length = {"input": 1 if case.channels_last else len(shape) - 1}.get(symbol)
    names = {0: "batch"} if symbol in ("input", "past_state") else {}
    names |= {length: "length"} if length is not None else {}
    return [names.get(axis, size) for axis, size in enumerate(shape)]


STANDARD = ConvCase()
CASES = {
    "plain": replace(STANDARD, activation=None, optional=()),
    "none": replace(STANDARD, activation="none", optional=("bias",)),
    "silu": STANDARD,
    "swish, past": replace(STANDARD, activation="swish", optional=("past_state",)),
    "one frame": replace(STANDARD, length=1),
    "one frame, no past": replace(STANDARD, length=1, optional=()),
    "shorter than the state": replace(STANDARD, length=2, kernel=6),
    "kernel 1": replace(STANDARD, kernel=1),
    "kernel 1, one frame": replace(STANDARD, kernel=1, length=1, optional=()),
    "kernel 2": replace(STANDARD, kernel=2),
    "open": replace(STANDARD, symbolic=True),
    "open, no past": replace(STANDARD, symbolic=True, optional=("bias",)),
    "open, kernel 1": replace(STANDARD, symbolic=True, kernel=1),
    "computed": replace(STANDARD, constants=()),
    "constant past": replace(STANDARD, constants=("weight", "bias", "past_state")),
    "one channel": replace(STANDARD, channels=(1,)),
    "half": replace(STANDARD, dtype="float16"),
    "half, one frame": replace(STANDARD, dtype="float16", length=1),
    "half, computed": replace(STANDARD, dtype="float16", constants=(), activation="none"),
    "brain": replace(STANDARD, dtype="bfloat16"),
    "brain, one frame": replace(STANDARD, dtype="bfloat16", length=1, optional=()),
}
"""What the standard and com.microsoft share."""

MORE_CASES = {
    "old opset": replace(STANDARD, domain=MS, opset=9),
    "old opset, one frame": replace(STANDARD, domain=MS, opset=9, length=1),
    "dilation": replace(STANDARD, domain=MS, dilation=3, length=7),
    "dilation, one frame": replace(STANDARD, domain=MS, dilation=2, length=1),
    "dilation, open": replace(STANDARD, domain=MS, dilation=2, symbolic=True),
    "channels last": replace(STANDARD, domain=MS, channels_last=True),
    "channels last, one frame": replace(STANDARD, domain=MS, channels_last=True, length=1),
    "channels last, open, dilation": replace(STANDARD, domain=MS, channels_last=True, symbolic=True, dilation=2),
    "channels of two axes": replace(STANDARD, domain=MS, channels_last=True, channels=(2, 3)),
    "channels of two axes, one frame": replace(
        STANDARD, domain=MS, channels_last=True, channels=(2, 3), length=1, symbolic=True
    ),
    "channels of three axes, kernel 1": replace(
        STANDARD, domain=MS, channels_last=True, channels=(2, 1, 2), kernel=1
    ),
}
"""What com.microsoft has beside that."""

EVERY_CASE = (
    {f"{name}, standard": case for name, case in CASES.items()}
    | {f"{name}, com.microsoft": replace(case, domain=MS) for name, case in CASES.items()}
    | {f"{name}, com.microsoft": case for name, case in MORE_CASES.items()}
)
