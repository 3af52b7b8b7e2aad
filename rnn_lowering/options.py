"""The options of a lowering, composed of those of its rooms, and the keywords of functions that take them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_args

from rnn_lowering import argument_checks
from rnn_lowering.argument_checks import FORM, LIMITS, SIZES, with_keywords
from rnn_lowering.compare.options import Check, Tolerance
from rnn_lowering.errors import OptionError
from rnn_lowering.files.options import Files
from rnn_lowering.flags import KEYWORDS, keyword_of_flag
from rnn_lowering.limits import MOST_BYTES
from rnn_lowering.loops.options import LoopOptions
from rnn_lowering.opening.options import OpeningOptions
from rnn_lowering.option_texts import plain_type, with_attributes, with_keywords_of
from rnn_lowering.streaming.options import StreamAxis, StreamOptions
from rnn_lowering.targets.names import FormName, TargetName
from rnn_lowering.types import ArrayLike, ModelOrPath, Shapes, SizeOrSizes

if TYPE_CHECKING:  # the command's --help needs none
    import onnx_ir as ir

    from rnn_lowering.targets.target import Target

Function = TypeVar("Function", bound=Callable[..., Any])

ComputeName = Literal["native", "float32"]

FORMS: tuple[FormName, ...] = get_args(FormName)
KEEP: FormName = "keep"

Selection = str | Iterable[str] | Callable[["ir.Node"], bool]
"""Which nodes: an operator or a shell glob of names, several of them, or a function that decides for each node."""


def _form(name: str, given: Any) -> str:
    if isinstance(given, str) and given in get_args(TargetName):
        raise OptionError(f"form '{given}' does not exist", hint=f"it is a target: --target {given}")
    return argument_checks.one_of("form", FORMS)(name, given)


def _target(name: str, given: Any) -> str:
    from rnn_lowering.targets.target import target_named

    if not isinstance(given, str):
        raise argument_checks.wrong(name, given, "the name of a target, such as tvm")
    return target_named(given).name


def _selection(name: str, given: Any) -> Selection:
    """Take patterns, or a function."""
    if callable(given):
        return given  # type: ignore[no-any-return]
    patterns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise argument_checks.wrong(name, given, "a name, several, or a function of a node")
    return patterns


@dataclass(frozen=True)
class NodeOptions:
    """Which nodes to lower, in which form, and at which sizes.

    Attributes:
        to: The form: "scan", "loop", "unroll" (straight-line, for a known sequence length), "chunked" (several
            steps at once, for LinearAttention; straight-line for a known length, unless the target runs loops),
            "auto" (the form that the target prefers), or "keep" (nodes stay as they are, in streams). One step is
            straight-line in every form. "scan", "loop" and "unroll" apply to the Loops and Scans of the model too.
            Example: `to="unroll", dims={"seq": 16}`.
        target: The runtime that will run the result, a name in `TARGETS`. Example: `target="tvm"`.
        only: Lower only nodes whose operator or name matches this, or one of several (names as shell globs), or
            those for which a function of the onnx_ir node is true. A pattern that matches no node is an error.
            Example: `only=["LSTM", "/encoder/*"]`.
        except_: Do not lower nodes that match this. Example: `except_="/decoder/*"`.
        max_unroll: The maximum number of steps to unroll. Example: `max_unroll=1000`.
        max_nodes: The maximum number of nodes after inlining functions with recurrent nodes. Example:
            `max_nodes=200_000`.
        max_bytes: Maximum bytes of a constant that is computed while lowering; a larger one is computed at run
            time. Example: `max_bytes=1 << 30`.
        compute: "native" keeps each node's element type; "float32" casts the inputs of float16 and bfloat16 nodes
            to float32 and their outputs back, as onnxruntime's float16 kernels do; so a bfloat16 model runs on its
            CPU. Example: `compute="float32"`.
        dequantize: Convert weights that the model stores as integers before a DequantizeLinear to floats. Example:
            `dequantize=True`.
        keep_rest: Keep the opset and the other nodes as they are. Otherwise the opset goes down as far as the other
            nodes allow, to 17 at least, if it is newer than the target takes, or if LinearAttention or
            CausalConvWithState of opset 27 is lowered, since most runtimes refuse 27; and other nodes that, by
            ONNX's tests, the target does not compute right are replaced by operators that are right there, if
            possible. Example: `keep_rest=True`.
        require_supported: Refuse a model with a node that, by ONNX's tests, the target does not compute right.
            Otherwise a warning names the node. Example: `target="tvm", require_supported=True`.
        native: Keep nodes that were measured to be right in `target` and, where the speed is known, not slower.
            With a form in `to`, or with `stream`, all nodes are lowered. Example: `target="openvino", native=True`.
        join: Compute small nodes that do not depend on each other, both directions of a node, and layers, in one
            loop, if that is faster in the target. Example: `join=False`.
        dims: Sizes of symbolic dimensions, by name. If T is still unknown then, constants that depend on the sizes
            are folded. Of an axis that `open_dims` opens: the size of each export. Example: `dims={"seq": 16,
            "batch": 1}`.
        input_shapes: Shapes of inputs, by input name. Example: `input_shapes={"X": [16, 1, 80]}`.
        set_inputs: Values of inputs that become constants, by input name: the lowered model does not have these
            inputs, and an If whose condition depends only on them is replaced by its branch. A number or an array.
            Example: `set_inputs={"sr": 16000}`.
    """

    to: FormName = FORM.option(
        "--to form",
        "",
        "auto",
        "form of the lowered nodes, and of the model's Loops and Scans: a Scan, a Loop, straight-line code without "
        "a loop (unroll), or several steps at once (chunked, for LinearAttention); keep: do not lower them "
        "(default: {default}, the form that the target prefers)",
        _form,
        choices=FORMS,
    )
    target: TargetName = FORM.option(
        "--target NAME", "target", "portable", "the runtime that will run OUT.onnx (default: {default})", _target
    )
    only: Selection = FORM.option(
        "--only OP|NAME", "pattern", (), "lower only these operators or node names (globs)", _selection
    )
    except_: Selection = FORM.option("--except OP|NAME", "pattern", (), "do not lower these", _selection)
    max_unroll: int = LIMITS.option(
        "--max-unroll T", "count", 512, "maximum number of steps to unroll (default: {default})"
    )
    max_nodes: int = LIMITS.option(
        "--max-nodes N", "count", 100_000, "maximum number of nodes after inlining functions (default: {default})"
    )
    max_bytes: int = LIMITS.option(
        "--max-bytes N[K|M|G]",
        "bytes",
        MOST_BYTES,
        "maximum size of a computed constant, and of the inputs of a comparison run "
        f"(default: {MOST_BYTES >> 20}M)",
    )
    compute: ComputeName = FORM.option(
        "--compute compute",
        "",
        "native",
        "float32: compute float16 and bfloat16 nodes in float32 (default: {default}, in their own type)",
        choices=get_args(ComputeName),
    )
    dequantize: bool = FORM.switch("--dequantize", "convert weights stored as integers to floats")
    keep_rest: bool = FORM.switch(
        "--keep-rest",
        "keep the opset and the other nodes as they are (default: lower the opset if it is 27 or too new for the "
        "target, and replace nodes that the target does not compute right, if possible)",
    )
    require_supported: bool = FORM.switch(
        "--require-supported",
        "fail if the model has another node that, by ONNX's tests, the target does not compute right",
    )
    native: bool = FORM.switch(
        "--native",
        "keep nodes that were measured to be right in the target and, where the speed is known, not slower",
    )
    join: bool = FORM.option(
        "--no-join",
        "no flag",
        True,
        "give each node and direction its own loop (default: small nodes share a loop if that is faster)",
    )
    dims: Mapping[str, SizeOrSizes] = SIZES.option("--set-dim NAME=SIZE", "size", {}, "fix the size of a dimension")
    input_shapes: Shapes = SIZES.option("--set-shape NAME:D0,D1,...", "shape", {}, "fix the shape of an input")
    set_inputs: Mapping[str, ArrayLike] = SIZES.option(
        "--set-input NAME=VALUE|FILE.npy", "value", {}, "make an input a constant, and compute what follows from it"
    )


@with_attributes
@dataclass(frozen=True)
class Lowering(StreamOptions, OpeningOptions, LoopOptions, NodeOptions):
    """Which nodes to lower, and how: the options of all rooms.

    Raises:
        OptionError: A form or target that does not exist, a negative limit, a pattern that is not text, an
            impossible number of frames, or `native` or `require_supported` for a target that was not measured.
        TypeError: An attribute that does not exist; as a keyword of `lower` and the others it is an OptionError.

    Examples:
        >>> lowering = rl.Lowering("unroll", dims={"seq": 16})
        >>> [node.form for node in rl.lower(model, lowering, full=True)[1].nodes]
        ['unroll', 'unroll']
    """

    __repr__ = argument_checks.changed_options

    def __post_init__(self) -> None:
        argument_checks.take_fields(self)
        self.check_stream()
        self.check_opening()
        if isinstance(self.only, tuple) and isinstance(self.except_, tuple):
            for pattern in set(self.only) & set(self.except_):
                raise OptionError(f"'{pattern}' is to be lowered, and not to be", hint="drop --only or --except")
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
        from rnn_lowering.targets.target import target_named

        return target_named(self.target)

    @property
    def for_a_runtime(self) -> bool:
        """Whether the target is a runtime, whose operators are known."""
        return self.target != Lowering.target

    @property
    def keeps_nodes(self) -> bool:
        """Whether recurrent nodes, Loops and Scans are not lowered: asked to be kept, or only to be raised."""
        plain = self.to == "auto" and not self.for_a_runtime and self.stream is None and not self.lower_loops
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
    keep_rest: bool
    lower_loops: bool
    require_supported: bool
    native: bool
    raise_loops: bool
    join: bool
    open_dims: Mapping[str, str] | None
    also: Sequence[ModelOrPath]
    dims: Mapping[str, SizeOrSizes] | None
    input_shapes: Shapes | None
    set_inputs: Mapping[str, ArrayLike] | None
    stream: StreamAxis | None
    delay: bool | int
    max_frames: int | None


for _kind in (Lowering, Tolerance, Check, Files):
    for _field in fields(_kind):
        _option = _field.metadata["option"]
        _outer = f"rl.{_kind.__name__}({_field.name}=...)" if _kind in (Check, Tolerance) else _field.name
        if _option.flag:
            KEYWORDS[_option.flag] = (_option.keyword or _outer, _option.kind)


def lowering_of(given: Lowering | FormName, options: LoweringOptions, function: Callable[..., Any]) -> Lowering:
    """Return a lowering from an object or a form, with keywords of a function.

    Raises:
        OptionError: As `Lowering`; or a form that is given twice, or a keyword that does not exist.
    """
    if isinstance(given, str) and given != "auto" and options.get("to", given) != given:
        raise OptionError(f"two forms are given: '{given}' and '{options['to']}'", hint="give one")
    refuse_unknown(options, Lowering, function)
    return with_keywords(given if isinstance(given, Lowering) else Lowering(given), options)


def shows(*names: str) -> Callable[[Function], Function]:
    """Return a decorator for a function that takes all options: its signature shows these, its docstring all."""

    def decorate(function: Function) -> Function:
        own = signature(function)
        of_names = {field.name: field for field in fields(Lowering)}
        shown = [_parameter(of_names[name]) for name in names]
        *others, options = own.parameters.values()
        function.__signature__ = own.replace(parameters=[*others, *shown, options])  # type: ignore[attr-defined]
        return with_keywords_of(Lowering)(function)

    return decorate


def _parameter(option: Field[Any]) -> Parameter:
    default, kind = None if option.default is MISSING else option.default, plain_type(option.type)
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


_OF_FILES = {each.name for each in fields(Files)} | {each.metadata["option"].keyword for each in fields(Check)}
"""The keywords that only `lower_file` has."""


_ELSEWHERE = {
    **{"verify": "runs", "test_shapes": "shapes", "verify_timeout": "timeout", "test_inputs": "feeds"},
    **{"runs": "verify", "timeout": "verify_timeout", "form": "to", "shape": "input_shapes", "sizes": "dims"},
    **{name: f"tolerance=rl.Tolerance({name}=...)" for name in ("rtol", "atol")},
}
"""What a keyword of another function, or an idea, is called."""


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
                if (keyword := keyword_of_flag(name, names) or _elsewhere(name, names))
                else "rl.lower_file has it, since it compares and writes files"
                if kind is Lowering and name in _OF_FILES
                else argument_checks.meant(name, names, most=2).removeprefix("; "),
            )


def _elsewhere(name: str, names: Collection[str]) -> str:
    keyword = _ELSEWHERE.get(name, "")
    return keyword if keyword.partition("=")[0] in names else ""
