"""The options of a lowering, of a comparison and of files: frozen objects, and keywords of functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import Parameter, signature
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_args

from rnn_lowering import argument_checks
from rnn_lowering.argument_checks import option, switch
from rnn_lowering.errors import OptionError
from rnn_lowering.flags import keyword_of_flag
from rnn_lowering.limits import MOST_BYTES
from rnn_lowering.targets.names import FormName, TargetName
from rnn_lowering.types import Array, ArrayLike, Shapes

if TYPE_CHECKING:  # the command's --help needs none
    import onnx_ir as ir

    from rnn_lowering.targets.target import Target

ComputeName = Literal["native", "float32"]

BITS = ("w8a8", "w8a16")

FORMS: tuple[FormName, ...] = get_args(FormName)
KEEP: FormName = "keep"

Stream = str | Mapping[str, int | None]
"""AXIS or "AXIS=FRAMES", or the frames by AXIS: a symbolic dimension of the inputs, or INPUT:AXIS. With unlike
numbers a frame of the stream is the greatest common divisor: "mic=160,features=1"."""

Sequences = Path | Sequence[Mapping[str, Array]]
"""Whole sequences by input name, or the file or folder that has them."""

Selection = str | Iterable[str] | Callable[["ir.Node"], bool]
"""Which nodes: an operator or a shell glob of names, several of them, or a function that decides for each node."""


_FORM, _SIZES, _LIMITS, _COMPARISON, _QUANTIZATION, _FILES = GROUPS = (
    "which nodes, in which form",
    "sizes and inputs of the result",
    "limits",
    "comparison with the original",
    "integers, with --stream AXIS=FRAMES",
    "files",
)
"""The groups of the options in --help."""


def _target(name: str, given: Any) -> str:
    from rnn_lowering.targets.table import target_named

    return target_named(argument_checks.text(name, given)).name


def _selection(name: str, given: Any) -> Selection:
    """Take patterns, or a function."""
    if callable(given):
        return given  # type: ignore[no-any-return]
    patterns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise argument_checks.wrong(name, given, "a name, several, or a function of a node")
    return patterns


def parse_stream(stream: Stream) -> dict[str, int | None]:
    """Return the number of frames by axis, from "AXIS", "AXIS=FRAMES", several of these with commas, or a mapping.

    Raises:
        OptionError: FRAMES is not a positive integer, or no axis is named.
    """
    if isinstance(stream, str):
        parts = stream.split(",")
        stream = dict(map(_parsed, parts if all("=" in part for part in parts) else [stream]))
    given = _frames("stream", stream)
    if "" in given:
        raise OptionError("the time axis has no name", hint="give AXIS or AXIS=FRAMES")
    return given


def check_whole_calls(stream: Stream | None, max_frames: int | None) -> None:
    """Check that calls of a fixed number of frames end with the last frame of the stream.

    Raises:
        OptionError: They do not.
    """
    counts = [count for count in parse_stream(stream).values() if count] if stream else []
    frames = math.gcd(*counts)
    if max_frames is not None and frames and max_frames % frames:
        raise OptionError(
            f"a maximum of {max_frames} frames is no multiple of the {frames} frames of a call",
            hint=f"give a multiple: --max-frames {-(-max_frames // frames) * frames}",
        )


def _parsed(text: str) -> tuple[str, int | None]:
    axis, equals, frames = text.rpartition("=")
    if not equals:
        return text, None
    if not frames.isdecimal():
        raise OptionError(f"'{frames}' is not a number of frames", hint="give AXIS or AXIS=FRAMES")
    return axis, int(frames)


_frames = argument_checks.mapping(
    argument_checks.optional(argument_checks.integer(1)),
    "AXIS, AXIS=FRAMES, or frames by axis, such as {'time': 1}",
)


def parse_delay(name: str, given: Any) -> bool | int:
    """Take a delay: the maximum of frames, or True for any number."""
    if isinstance(given, bool):
        return given
    return argument_checks.integer()(name, given)


def _stream(_: str, given: Any) -> Stream:
    parse_stream(given)
    return given  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Tolerance:
    """Values that count as equal: |a - b| <= atol + rtol * |a|; NaN equals NaN, infinity equals the same infinity.

    Without values, they depend on the element type: docs/verification.md has the table.

    Examples:
        >>> rl.verify(model, rl.lower(model), tolerance=rl.Tolerance(rtol=1e-3), runs=1).status
        'verified'
    """

    rtol: float | None = option(
        None, argument_checks.tolerance, "relative tolerance (default: by element type)", _COMPARISON
    )
    atol: float | None = option(
        None, argument_checks.tolerance, "absolute tolerance (default: by element type)", _COMPARISON
    )

    def __post_init__(self) -> None:
        argument_checks.take_fields(self)


@dataclass(frozen=True)
class Lowering:
    """Which nodes to lower, and how.

    Attributes:
        to: The form: "scan", "loop", "unroll" (straight-line, for a known sequence length), "chunked" (several
            steps at once, for LinearAttention; straight-line for a known length, unless the target runs loops),
            "auto" (the form that the target prefers), or "keep" (nodes stay as they are, in streams). One step
            is straight-line in every form.
            "scan", "loop" and "unroll" apply to the Loops and Scans of the model too.
        target: The runtime that will run the result, a name in `TARGETS`.
        only: Lower only nodes whose operator or name matches this, or one of several (names as shell globs), or
            those for which a function of the onnx_ir node is true. A pattern that matches no node is an error.
        except_: Do not lower nodes that match this.
        max_unroll: The maximum number of steps to unroll.
        max_nodes: The maximum number of nodes after inlining functions with recurrent nodes.
        max_bytes: Maximum bytes of a constant that is computed while lowering; a larger one is computed at run
            time.
        compute: "native" keeps each node's element type; "float32" casts the inputs of float16 and bfloat16 nodes
            to float32 and their outputs back, as onnxruntime's float16 kernels do; so a bfloat16 model runs on its
            CPU.
        dequantize: Convert weights that the model stores as integers before a DequantizeLinear to floats.
        keep_opset: Keep the opset of the model. Otherwise it goes down as far as the other nodes allow, to 17 at
            least, if it is newer than the target takes, or if LinearAttention or CausalConvWithState of opset 27
            is lowered, since most runtimes refuse 27.
        loops: Lower every Loop and Scan of the model too, in the form that `to` or the target chooses. Otherwise
            only those are lowered that the target does not run, or whose form is not `to`.
        keep_ops: Keep the other nodes that, by ONNX's tests, the target does not compute right. Otherwise they are
            replaced by operators that are right there, if possible.
        require_supported: Refuse a model with a node that, by ONNX's tests, the target does not compute right.
            Otherwise a warning names the node.
        native: Keep nodes that were measured to be right in `target` and, where the speed is known, not slower.
            With a form in `to`, or with `stream`, all nodes are lowered.
        raise_loops: Turn each Loop and Scan that computes an RNN, GRU or LSTM into that node, before all else.
            Without `to`, `target`, `stream` and `loops`, nothing else is done: the node is the fastest form in
            onnxruntime.
        join: Compute small nodes that do not depend on each other, both directions of a node, and layers, in one
            loop, if that is faster in the target.
        open_dims: Axes of inputs whose size the exporter fixed, as "X:1", and the names that their sizes get.
            Numbers in the model that were derived from such a size are adapted. If a number may mean something
            else, the model is refused.
        dims: Sizes of symbolic dimensions, by name. If T is still unknown then, constants that depend on the sizes
            are folded.
        input_shapes: Shapes of inputs, by input name.
        set_inputs: Values of inputs that become constants, by input name: the lowered model does not have these
            inputs, and an If whose condition depends only on them is replaced by its branch. A number or an array.
        stream: The time axis of a model to call chunk by chunk, with states as inputs and outputs:
            "time", "time=1" for one frame in each call, or {"X:1": None} for axis 1 of X and any number of frames.
            {"mic": 160, "features": 1}: 160 samples of one input belong to a frame of the other.
        delay: By how many frames the outputs of a stream may come late if its nodes look ahead; True: any number.
        max_frames: The length of the longest sequence of a stream, in frames: attention to all past frames then
            keeps that many keys and values, and the next frame is an error. Without it, they grow with each call.

    Raises:
        OptionError: A form or target that does not exist, a negative limit, a pattern that is not text, an
            impossible number of frames, or `native` or `require_supported` for a target that was not measured.
        TypeError: An attribute that does not exist; as a keyword of `lower` and the others it is an OptionError.

    Examples:
        >>> lowering = rl.Lowering("unroll", dims={"seq": 16})
        >>> [node.form for node in rl.lower(model, lowering, full=True)[1].nodes]
        ['unroll', 'unroll']
    """

    to: FormName = option(
        "auto",
        argument_checks.one_of("form", FORMS),
        "form of the lowered nodes, and of the model's Loops and Scans: a Scan, a Loop, straight-line code without "
        "a loop (unroll), or several steps at once (chunked, for LinearAttention); keep: do not lower them "
        "(default: {default}, the form that the target prefers)",
        _FORM,
        choices=FORMS,
    )
    target: TargetName = option(
        "portable", _target, "the runtime that will run OUT.onnx (default: {default})", _FORM, metavar="NAME"
    )
    only: Selection = option(
        (), _selection, "lower only these operators or node names (globs)", _FORM, metavar="OP|NAME"
    )
    except_: Selection = option((), _selection, "do not lower these", _FORM, metavar="OP|NAME")
    max_unroll: int = option(
        512,
        argument_checks.integer(),
        "maximum number of steps to unroll (default: {default})",
        _LIMITS,
        metavar="T",
    )
    max_nodes: int = option(
        100_000,
        argument_checks.integer(),
        "maximum number of nodes after inlining functions (default: {default})",
        _LIMITS,
        metavar="N",
    )
    max_bytes: int = option(
        MOST_BYTES,
        argument_checks.integer(),
        "maximum size of a computed constant, and of the inputs of a comparison run "
        f"(default: {MOST_BYTES >> 20}M)",
        _LIMITS,
        metavar="N[K|M|G]",
    )
    compute: ComputeName = option(
        "native",
        argument_checks.one_of("compute", get_args(ComputeName)),
        "float32: compute float16 and bfloat16 nodes in float32 (default: {default}, in their own type)",
        _FORM,
        choices=get_args(ComputeName),
    )
    dequantize: bool = switch("convert weights stored as integers to floats", _FORM)
    keep_opset: bool = switch(
        "keep the opset of the model (default: lower it if it is 27 or too new for the target, and no node needs "
        "it)",
        _FORM,
    )
    loops: bool = switch(
        "lower every Loop and Scan of the model too (default: only those that the target does not run, or whose "
        "form is not that of --to)",
        _FORM,
    )
    keep_ops: bool = switch(
        "keep other nodes that the target does not compute right (default: replace them, if possible)", _FORM
    )
    require_supported: bool = switch(
        "fail if the model has another node that, by ONNX's tests, the target does not compute right", _FORM
    )
    native: bool = switch(
        "keep nodes that were measured to be right in the target and, where the speed is known, not slower", _FORM
    )
    raise_loops: bool = switch(
        "turn each Loop and Scan that computes an RNN, GRU or LSTM into that node. Alone, it lowers nothing; with "
        "--to, --target, --stream or --loops the new nodes are lowered like all others",
        _FORM,
    )
    join: bool = option(
        True,
        argument_checks.flag,
        "give each node and direction its own loop (default: small nodes share a loop if that is faster)",
        _FORM,
    )
    open_dims: Mapping[str, str] = option(
        {},
        argument_checks.names_of_axes,
        "make a fixed axis dynamic; numbers derived from its size are adapted, or the model is refused",
        _SIZES,
        metavar="INPUT:AXIS=NAME",
    )
    dims: Mapping[str, int] = option(
        {}, argument_checks.sizes, "fix the size of a dimension", _SIZES, metavar="NAME=SIZE"
    )
    input_shapes: Shapes = option(
        {}, argument_checks.shapes, "fix the shape of an input", _SIZES, metavar="NAME:D0,D1,..."
    )
    set_inputs: Mapping[str, ArrayLike] = option(
        {},
        argument_checks.values,
        "make an input a constant, and compute what follows from it",
        _SIZES,
        metavar="NAME=VALUE|FILE.npy",
    )
    stream: Stream | None = option(
        None,
        argument_checks.optional(_stream),
        "make a stream: a model that you call chunk by chunk, with its states as inputs and outputs. AXIS: the "
        "time dimension, by name or as INPUT:AXIS. FRAMES: frames in each call (default: any number); inputs may "
        "have different numbers: mic=160,features=1. Without AXIS: list the axes",
        _SIZES,
        metavar="AXIS[=FRAMES]",
    )
    delay: bool | int = option(
        False,
        parse_delay,
        "for nets that look ahead: outputs of the stream may come late, by at most FRAMES (default: any number)",
        _SIZES,
        metavar="FRAMES",
    )
    max_frames: int | None = option(
        None,
        argument_checks.optional(argument_checks.integer(1)),
        "for attention to all past frames: give the stream fixed shapes, for sequences of at most N frames "
        "(default: its states grow)",
        _SIZES,
        metavar="N",
    )

    def __post_init__(self) -> None:
        argument_checks.take_fields(self)
        if self.max_frames is not None and self.stream is None:
            raise OptionError("a maximum of frames needs a stream", hint="add --stream, or drop --max-frames")
        if self.delay is not False and self.stream is None:
            raise OptionError("a delay needs a stream", hint="add --stream, or drop --delay")
        if isinstance(self.only, tuple) and isinstance(self.except_, tuple):
            for pattern in set(self.only) & set(self.except_):
                raise OptionError(f"'{pattern}' is to be lowered, and not to be", hint="drop --only or --except")
        check_whole_calls(self.stream, self.max_frames)
        self._check_known_of_target()

    def _check_known_of_target(self) -> None:
        """Check that the package knows of the target what the options ask for."""
        portable = self.target == Lowering.target
        rule = self.runtime.native if self.native else None
        if self.native and not (rule and rule.right):
            from rnn_lowering.targets.table import TARGETS

            known = ", ".join(name for name, target in TARGETS.items() if target.native and target.native.right)
            raise OptionError(
                f"{self.target} {rule.excluded[0].reason}, so none stays native"
                if rule
                else f"no rule says which recurrent nodes {self.target} computes right, so none can stay native",
                hint=f"add --target: one of {known}"
                if portable
                else f"drop --native; targets with rules are {known}",
            )
        if self.require_supported:
            from rnn_lowering.targets.onnx_tests import measured_targets

            if self.target not in measured_targets():
                known = ", ".join(measured_targets())
                raise OptionError(
                    f"no results of ONNX's tests in {self.target} are known, so nothing can be checked",
                    hint=f"add --target: one of {known}"
                    if portable
                    else f"drop --require-supported; known are those of {known}",
                )

    @property
    def runtime(self) -> Target:
        """The target, from the table of targets."""
        from rnn_lowering.targets.table import target_named

        return target_named(self.target)

    @property
    def keeps_nodes(self) -> bool:
        """Whether recurrent nodes, Loops and Scans are not lowered: asked to be kept, or only to be raised."""
        plain = self.to == "auto" and self.target == Lowering.target and self.stream is None and not self.loops
        return self.to == KEEP or (self.raise_loops and plain)

    @property
    def widens(self) -> bool:
        """Whether float16 and bfloat16 nodes are computed in float32."""
        return self.compute == "float32"

    @property
    def fixes_inputs(self) -> bool:
        """Whether sizes or values of inputs are given."""
        return bool(self.dims or self.input_shapes or self.set_inputs)


class LoweringOptions(TypedDict, total=False):
    """The attributes of `Lowering` as keywords; a type checker cannot derive them, so a test compares both."""

    to: FormName
    target: TargetName
    only: Selection
    except_: Selection
    max_unroll: int
    max_nodes: int
    max_bytes: int
    compute: ComputeName
    dequantize: bool
    keep_opset: bool
    loops: bool
    keep_ops: bool
    require_supported: bool
    native: bool
    raise_loops: bool
    join: bool
    open_dims: Mapping[str, str] | None
    dims: Mapping[str, int] | None
    input_shapes: Shapes | None
    set_inputs: Mapping[str, ArrayLike] | None
    stream: Stream | None
    delay: bool | int
    max_frames: int | None


runs_of_check = argument_checks.integer(most=1_000_000)


@dataclass(frozen=True)
class Check:
    """How two models are compared.

    Attributes:
        runs: The number of runs with random inputs; 0: no comparison. The sizes of dynamic dimensions change from
            run to run, and repeat after a few runs.
        seed: Seed of the random inputs.
        tolerance: Values that count as equal.
        feeds: Inputs to compare with, one run each; inputs that you do not name are random.
        shapes: Shapes of the random inputs, by name.
        timeout: Time limit in seconds for loading a model and for each run; it may be infinite. A slower model is
            not verified.
        max_bytes: Maximum bytes of the inputs of a run. The process may use 16 times as much, plus the weights; a
            model that needs more is not verified.

    Raises:
        OptionError: A negative number of runs or bytes, or a time limit that is not positive.

    Examples:
        >>> check = rl.Check(runs=1, shapes={"X": [16, 1, 80]})
        >>> rl.verify(model, rl.lower(model), check=check).status
        'verified'
    """

    runs: int = option(
        3,
        runs_of_check,
        "number of comparison runs in onnxruntime (default: {default})",
        _COMPARISON,
        metavar="N",
    )
    seed: int = option(0, argument_checks.integer(), "seed of the random inputs (default: {default})", _COMPARISON)
    tolerance: Tolerance = option(Tolerance(), argument_checks.instance(Tolerance, "Tolerance(rtol=..., atol=...)"))
    feeds: Sequence[Mapping[str, Array]] | None = option(
        None,
        argument_checks.optional(argument_checks.feeds),
        "use this array as the input in the comparison",
        _COMPARISON,
        metavar="NAME=FILE.npy",
    )
    shapes: Shapes | None = option(
        None,
        argument_checks.optional(argument_checks.shapes),
        "use a random input of this shape in the comparison",
        _COMPARISON,
        metavar="NAME:D0,...",
    )
    timeout: float = option(
        120.0,
        argument_checks.seconds,
        "time limit for loading a model and for each run; a slower model is not verified (default: {default})",
        _COMPARISON,
        metavar="SECONDS",
    )
    max_bytes: int = option(MOST_BYTES, argument_checks.integer())

    def __post_init__(self) -> None:
        argument_checks.take_fields(self)


class CheckOptions(TypedDict, total=False):
    """The attributes of `Check` as keywords."""

    runs: int | None
    seed: int | None
    tolerance: Tolerance | None
    feeds: Sequence[Mapping[str, Array]] | None
    shapes: Shapes | None
    timeout: float | None
    max_bytes: int | None


def _calibration(name: str, given: Any) -> Sequences:
    """Take a path, or sequences by input name."""
    if isinstance(given, str | PathLike):
        return argument_checks.path(name, given)
    return argument_checks.feeds(name, given)


@dataclass(frozen=True)
class Files:
    """The options of `lower_file` about files: each attribute means the same as its keyword."""

    keep_failed: Path | None = option(
        None,
        argument_checks.optional(argument_checks.path),
        "write a model that fails the comparison to FILE",
        _COMPARISON,
        metavar="FILE",
    )
    report: Path | None = option(
        None,
        argument_checks.optional(argument_checks.path),
        "write a report as JSON or as an HTML page with plots, also if the comparison fails",
        _FILES,
        metavar="FILE.json|FILE.html",
    )
    external_data: str = option(
        "auto",
        argument_checks.text,
        "write large tensors to a file beside OUT.onnx (default: {default}, as in the input)",
        _FILES,
        metavar="auto|always|never|FILE",
    )
    trust_external_data: bool = switch("allow data files outside the folder of IN.onnx", _FILES)
    require_verified: bool = switch("write nothing if no comparison is possible", _COMPARISON)
    calibrate: Sequences | None = option(
        None,
        argument_checks.optional(_calibration),
        "quantize the stream, with ranges measured on whole sequences: a .npy file, a .npz file with an array for "
        "each input, or a folder of such files",
        _QUANTIZATION,
        metavar="FILE|FOLDER",
    )
    bits: str = option(
        "w8a8",
        argument_checks.one_of("bits", BITS),
        "bits of weights and of activations (default: {default})",
        _QUANTIZATION,
        choices=BITS,
    )
    overwrite: bool = switch(
        "replace existing files; a data file gets a new name if one exists. Also write a quantized stream with an "
        "output below 10 dB",
        _FILES,
    )

    def __post_init__(self) -> None:
        argument_checks.take_fields(self)
        if self.calibrate is None and self.bits != Files.bits:
            raise OptionError("the number of bits needs a calibration", hint="add --calibrate FILE, or drop --bits")


def lowering_of(given: Lowering | FormName, options: LoweringOptions, function: Callable[..., Any]) -> Lowering:
    """Return a lowering from an object or a form, with keywords of a function.

    Raises:
        OptionError: As `Lowering`; or a form that is given twice, or a keyword that does not exist.
    """
    if isinstance(given, str) and given != "auto" and options.get("to", given) != given:
        raise OptionError(f"two forms are given: '{given}' and '{options['to']}'", hint="give one")
    refuse_unknown(options, Lowering, function)
    return _with(given if isinstance(given, Lowering) else Lowering(given), options)


def check_of(given: Check | None, options: CheckOptions) -> Check:
    """Return a check from an object, with keywords.

    Raises:
        OptionError: As `Check`.
    """
    check = Check() if given is None else argument_checks.instance(Check, "Check(runs=...)")("check", given)
    return _with(check, options)


def refuse_unknown(options: Mapping[str, Any], kind: type, function: Callable[..., Any]) -> None:
    """Refuse keywords of a function that are no attributes of a kind of options.

    Raises:
        OptionError: A keyword that does not exist; it names those that are like it.
    """
    known = [field.name for field in fields(kind)]
    for name in options:
        if name not in known:
            own = (p.name for p in signature(function).parameters.values() if p.kind == Parameter.KEYWORD_ONLY)
            names = [*known, *own]
            raise OptionError(
                f"{function.__name__}() has no keyword '{name}'",
                hint=f"did you mean {keyword}?"
                if (keyword := keyword_of_flag(name, names))
                else argument_checks.meant(name, names, most=2).removeprefix("; "),
            )


_Options = TypeVar("_Options", Lowering, Check)


def _with(given: _Options, options: LoweringOptions | CheckOptions) -> _Options:
    """Return options with keywords, which take precedence; None counts as none."""
    return replace(given, **{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]
