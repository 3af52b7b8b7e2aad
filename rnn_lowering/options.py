"""The options of a lowering and of a verification, as frozen objects and as keywords of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict, TypeVar

import onnx_ir as ir

from rnn_lowering.errors import OptionError
from rnn_lowering.limits import MOST_BYTES
from rnn_lowering.targets.table import FORMS, Target, target_named
from rnn_lowering.types import Array, ArrayLike, Shapes

COMPUTE = ("native", "float32")
KEEP = "keep"
"""Instead of a form: recurrent nodes stay."""

Stream = str | Mapping[str, int | None]
"""AXIS or "AXIS=FRAMES", or the frames by AXIS: a symbolic dimension of the inputs, or INPUT:AXIS."""

Selection = str | Iterable[str] | Callable[[ir.Node], bool]
"""Which nodes: an operator or a shell glob of names, several of them, or a function that decides for each node."""


@dataclass(frozen=True)
class Tolerance:
    """Which values count as equal: |a - b| <= atol + rtol * |a|; NaN equals NaN, infinity equals the same infinity.

    None: by the element type (float32: rtol 1e-4, atol 1e-5; float64: 1e-9, 1e-10; float16: 1e-2, 2e-3; bfloat16:
    8e-2, 4e-2; others exactly equal).
    """

    rtol: float | None = None
    atol: float | None = None


@dataclass(frozen=True)
class Lowering:
    """Which nodes are lowered, and how.

    Attributes:
        to: The form: "scan", "loop", "unroll" (straight-line, for a known sequence length), or "auto": for each
            node straight-line at length 1, else what the target prefers; portable: Scan where the opset has it,
            else Loop; "keep": they stay, for a stream whose runtime has them.
        target: The runtime that the result is for, a name in `TARGETS`: which forms and operators it supports.
        only: Lower only nodes whose operator or name matches this, or one of several (names as shell globs), or
            those for which a function of the onnx_ir node is true. A pattern that matches no node is an error.
        except_: Leave the nodes that match this.
        max_unroll: The most steps that are unrolled.
        max_nodes: The most nodes that the model may have after inlining functions with recurrent nodes.
        max_bytes: The most bytes of a constant that is computed at lowering time; a larger one stays a computation.
        compute: "native" keeps each node's element type; "float32" casts the inputs of float16 and bfloat16 nodes
            to float32 and their outputs back, as onnxruntime's float16 kernels do; so a bfloat16 model runs on its
            CPU.
        dequantize: Convert weights that the model stores as integers before a DequantizeLinear to floats.
        dims: Sizes of symbolic dimensions, by name. If T is still unknown then, constants that depend on the sizes
            are folded.
        input_shapes: Shapes of inputs, by input name.
        set_inputs: Values of inputs that become constants, by input name: the lowered model does not have these
            inputs, and an If whose condition depends on them only is replaced by its branch. A number or an array.
        stream: The axis of time of a model that is to be called chunk by chunk, its states inputs and outputs:
            "time", "time=1" for one frame in each call, or {"X:1": None} for axis 1 of X and any number of frames.

    Raises:
        OptionError: A form, target or way of computing that does not exist, a negative limit, a pattern that is no
            text, or a number of frames that is not possible.
    """

    to: str = "auto"
    target: str = "portable"
    only: Selection = ()
    except_: Selection = ()
    max_unroll: int = 512
    max_nodes: int = 100_000
    max_bytes: int = MOST_BYTES
    compute: str = "native"
    dequantize: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Shapes = field(default_factory=dict)
    set_inputs: Mapping[str, ArrayLike] = field(default_factory=dict)
    stream: Stream | None = None

    def __post_init__(self) -> None:
        if self.to not in (*FORMS, KEEP):
            known = ", ".join((*FORMS, KEEP))
            raise OptionError(f"form '{self.to}' does not exist", hint=f"known are {known}")
        if self.stream is not None:
            parse_stream(self.stream)
        if self.compute not in COMPUTE:
            raise OptionError(f"compute '{self.compute}' does not exist", hint=f"known are {', '.join(COMPUTE)}")
        for limit in ("max_unroll", "max_nodes", "max_bytes"):
            if getattr(self, limit) < 0:
                raise OptionError(f"{limit} cannot be {getattr(self, limit)}", hint="give 0 or more")
        for name in ("only", "except_"):
            object.__setattr__(self, name, _selection(name, getattr(self, name)))
        object.__setattr__(self, "target", target_named(self.target).name)

    @property
    def runtime(self) -> Target:
        """The target, from the table of targets."""
        return target_named(self.target)

    @property
    def fixes_inputs(self) -> bool:
        """Whether sizes or values of inputs are given."""
        return bool(self.dims or self.input_shapes or self.set_inputs)


def _selection(name: str, given: object) -> Selection:
    """Return a selection as a tuple of patterns or a function."""
    if callable(given):
        return given
    patterns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise OptionError(f"{name} cannot be {given!r}", hint="give a name, several, or a function of a node")
    return patterns


class LoweringOptions(TypedDict, total=False):
    """The attributes of `Lowering` as keywords."""

    to: str
    target: str
    only: Selection
    except_: Selection
    max_unroll: int
    max_nodes: int
    max_bytes: int
    compute: str
    dequantize: bool
    dims: Mapping[str, int] | None
    input_shapes: Shapes | None
    set_inputs: Mapping[str, ArrayLike] | None
    stream: Stream | None


@dataclass(frozen=True)
class Check:
    """How two models are compared.

    Attributes:
        runs: The number of runs with random inputs, each with other sizes of dynamic dimensions; 0: no comparison.
        seed: Seed of the random inputs.
        tolerance: Which values count as equal.
        feeds: Inputs to compare with, one run each; inputs that a feed does not name are random.
        shapes: Shapes of the random inputs, by name.
        timeout: Time limit in seconds for loading a model and for each of its runs, may be infinite; a slower model
            is not verified.
        max_bytes: The most bytes of the inputs of a run. Its process may use 16 times that besides the weights; a
            model that needs more is not verified.

    Raises:
        OptionError: A negative number of runs or bytes, or a time limit that is not positive.
    """

    runs: int = 3
    seed: int = 0
    tolerance: Tolerance = Tolerance()
    feeds: Sequence[Mapping[str, Array]] | None = None
    shapes: Shapes | None = None
    timeout: float = 120.0
    max_bytes: int = MOST_BYTES

    def __post_init__(self) -> None:
        if self.runs < 0:
            raise OptionError(f"{self.runs} runs are not possible", hint="give 0 or more")
        if self.max_bytes < 0:
            raise OptionError(f"max_bytes cannot be {self.max_bytes}", hint="give 0 or more")
        if not self.timeout > 0:
            raise OptionError(f"a time limit of {self.timeout} seconds is not possible", hint="give more than 0")


class CheckOptions(TypedDict, total=False):
    """The attributes of `Check` as keywords of `verify`."""

    runs: int
    seed: int
    tolerance: Tolerance | None
    feeds: Sequence[Mapping[str, Array]] | None
    shapes: Shapes | None
    timeout: float | None
    max_bytes: int


class FileOptions(LoweringOptions, total=False):
    """The attributes of `Lowering` and `Check` as keywords of `lower_file`: `verify` is `runs`; `max_bytes` is used
    for both."""

    verify: int
    seed: int
    tolerance: Tolerance | None
    feeds: Sequence[Mapping[str, Array]] | None
    test_shapes: Shapes | None
    verify_timeout: float | None


_CHECK_KEYWORDS = {
    "verify": "runs",
    "seed": "seed",
    "tolerance": "tolerance",
    "feeds": "feeds",
    "test_shapes": "shapes",
    "verify_timeout": "timeout",
}


def lowering_of(given: Lowering | str, options: LoweringOptions) -> Lowering:
    """Return a lowering from an object or a form, with keywords, which take precedence; None is no keyword.

    Raises:
        OptionError: As `Lowering`; or a form that is given twice.
        TypeError: A keyword that does not exist.
    """
    if isinstance(given, str) and given != "auto" and options.get("to", given) != given:
        raise OptionError(f"two forms are given: '{given}' and '{options['to']}'", hint="give one")
    return _with(given if isinstance(given, Lowering) else Lowering(given), options)


def check_of(given: Check | None, options: CheckOptions) -> Check:
    """Return a check from an object, with keywords, which take precedence; None is no keyword.

    Raises:
        OptionError: As `Check`.
        TypeError: A keyword that does not exist.
    """
    return _with(given or Check(), options)


def split_file_options(options: FileOptions) -> tuple[LoweringOptions, CheckOptions]:
    """Return the keywords of `lower_file` as those of a lowering and those of a check."""
    lowering = LoweringOptions()
    check = CheckOptions()
    for name, value in options.items():
        if name in _CHECK_KEYWORDS:
            check[_CHECK_KEYWORDS[name]] = value  # type: ignore[literal-required]
        else:
            lowering[name] = value  # type: ignore[literal-required]
    if "max_bytes" in options:
        check["max_bytes"] = options["max_bytes"]
    return lowering, check


_Options = TypeVar("_Options", Lowering, Check)


def _with(given: _Options, options: LoweringOptions | CheckOptions) -> _Options:
    named = {name: value for name, value in options.items() if value is not None}
    return replace(given, **named)  # type: ignore[arg-type]


def parse_stream(stream: Stream) -> dict[str, int | None]:
    """Return the number of frames by axis, from "AXIS", "AXIS=FRAMES" or a mapping.

    Raises:
        OptionError: FRAMES is no positive integer, or no axis is named.
    """
    given = dict([_parsed(stream)]) if isinstance(stream, str) else dict(stream)
    for axis, frames in given.items():
        if not axis:
            raise OptionError("the axis of time has no name", hint="give AXIS or AXIS=FRAMES")
        if frames is not None and (isinstance(frames, bool) or not isinstance(frames, int) or frames < 1):
            raise OptionError(f"a call cannot have {frames} frames", hint="give 1 or more, or none for any number")
    return given


def _parsed(text: str) -> tuple[str, int | None]:
    axis, equals, frames = text.rpartition("=")
    if not equals:
        return text, None
    if not frames.isdecimal():
        raise OptionError(f"'{frames}' is no number of frames", hint="give AXIS or AXIS=FRAMES")
    return axis, int(frames)
