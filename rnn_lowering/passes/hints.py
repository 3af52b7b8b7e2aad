"""Hints for errors: the inputs to fix if a size, a length or a number of steps is unknown, or a branch invalid."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import permutations
from shlex import quote, split

import onnx_ir as ir

from rnn_lowering.errors import (
    RnnLoweringError,
    UnknownLengthsError,
    UnknownSizeError,
)
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import bodies_of, default_opset, keeps_numbers, nodes_within, operator_of, reached
from rnn_lowering.flags import set_dim, set_dims, set_input
from rnn_lowering.model.copying import clone
from rnn_lowering.model.fixed_inputs import fix_dimensions, input_arrays
from rnn_lowering.model.folding import folded
from rnn_lowering.model.model_sizes import computed_values, inferred_values, open_names
from rnn_lowering.model.onnx_checks import fault_of
from rnn_lowering.model.trial_sizes import TRIAL
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.options import Lowering
from rnn_lowering.passes.stages import NO_STREAM, StreamInputs

_MOST_CANDIDATES = 12

TRIED = (2, TRIAL)
"""The sizes at which is tried whether a number of steps follows from sizes: a small one, and a multiple of many."""

_SIZES_ONLY = ("Shape", "Size")


def advise(
    error: UnknownSizeError | UnknownLengthsError,
    model: ir.Model,
    spec: NodeSpec,
    lowering: Lowering,
    stream: StreamInputs,
) -> None:
    """Let the error about a node of the model say which inputs to fix."""
    if isinstance(error, UnknownSizeError):
        axes = tuple(map(spec.axes(spec.data).index, error.sizes))
        X = spec.inputs[spec.data]
        sizes = _undeclared(X, spec) or open_sizes(model, X, axes, stream=stream)
        steps = "T" in error.sizes and spec.direction == "forward" and lowering.stream is None
        options = _options(sizes)
        error.advise_options(options, error.hint or (_one_step(options, error.sizes) if steps else ""))
    elif stream.has_lengths:
        error.advise("export the model without sequence_lens")
    elif stream.fewest:  # the lengths start a layer that is late
        error.reason = f"{lowering.runtime.name} cannot start a layer behind a look-ahead within a call"
        error.advise(f"give each call one frame of that layer: {stream.fewest}")
    else:
        X, lengths = spec.inputs[spec.data], spec.inputs["sequence_lens"]
        error.advise(_open_lengths(model, lengths, X) or _NO_LENGTHS)


def _one_step(options: Sequence[str], sizes: Sequence[str]) -> str:
    """Return the hint for a forward node of unknown length, where no other form is possible; with the name of the
    axis where one option fixes the length and nothing else."""
    words = split(options[0]) if len(options) == 1 and sizes == ("T",) else [""]
    axis = words[1].removesuffix("=?") if words[0] == "--set-dim" else "AXIS"
    return f"try a stream of one step a call (--stream {quote(f'{axis}=1')})"


def _undeclared(X: ir.Value, spec: NodeSpec) -> str:
    """Return the option that gives a node's data a shape where that is an input without one; "" elsewhere."""
    if not X.is_graph_input() or X.shape is not None:
        return ""
    known = {"T": spec.seq_length, "N": spec.batch_size}
    *sizes, width = (known.get(name or "") for name in spec.axes(spec.data))
    texts = ["?" if size is None else str(size) for size in (*sizes, width or spec.input_size)]
    return f"--set-shape {quote(f'{X.name}:')}{','.join(texts)}"


def advise_all(errors: Sequence[UnknownSizeError]) -> UnknownSizeError:
    """Return the first of these errors, whose hint names the options of all."""
    first, *others = errors
    if first.options and any({*error.options} - {*first.options} for error in others):
        first.advise_options([option for error in errors for option in error.options], first.otherwise)
    return first


def _options(text: str) -> list[str]:
    """Return each option of a text of options."""
    return [f"--{option}" for option in f" {text}".split(" --")[1:]]


def open_sizes(
    model: ir.Model,
    value: ir.Value,
    axes: tuple[int, ...],
    *,
    every: bool = False,
    stream: StreamInputs = NO_STREAM,
) -> str:
    """Return the options that fix sizes of a value, with ? for a size that the user fills in.

    Args:
        model: The model.
        value: A value of the model or of one of its subgraphs.
        axes: The dimensions of the value that must be known.
        every: Fix the sizes of all inputs.
        stream: What the model is called with, if it is a stream.

    Returns:
        Options of the command line; empty if the value depends on no open size of an input.
    """
    sources = _sources(value, model)
    inputs = [v for v in model.graph.inputs if v.shape is not None and (not v.is_initializer() or v in sources)]
    all_open = [name for v in inputs for name in _open_names_of(v.shape or ())]
    if every:
        missing = all_open
    else:
        known = inferred_values(model).get(value, value).shape
        has_axes = known is not None and len(known) > max(axes)
        missing = _open_names_of([known[axis] for axis in axes] if known is not None and has_axes else [None])
    own = [v for v in inputs if v.name not in stream.states]
    set_by_numbers = every and any(map(_holds_sizes, own))
    if missing and {*missing} <= set(filter(None, all_open)) and not set_by_numbers:
        return stream.options(missing)
    deciding = [v for v in own if every or v in sources]
    if stream.frames:
        return stream.options(name for v in deciding for name in _open_names_of(v.shape or ()))
    if not every and (few := _enough(open_names(model), lambda tried: _is_known_at(model, value, axes, tried))):
        return " ".join(map(stream.option, few))
    shaped = [v for v in deciding if v.shape is not None and not v.shape.is_static() and not _holds_sizes(v)]
    return " ".join([*map(_input_shape, shaped), *(_set_input(v) for v in deciding if _holds_sizes(v))])


def _open_names_of(dims: Iterable[int | ir.SymbolicDim | None]) -> list[str | None]:
    """Return the names of the sizes that are not known; None for one without a name."""
    return [dim.value if isinstance(dim, ir.SymbolicDim) else None for dim in dims if not isinstance(dim, int)]


def _is_known_at(model: ir.Model, value: ir.Value, axes: tuple[int, ...], names: Sequence[str]) -> bool:
    """Return whether sizes of a value are known once these sizes of the inputs are."""
    trial = tried_at(model, names)
    shapes = [v.shape for v in computed_values(trial) if v.name == value.name] if trial else []
    return any(shape is not None and all(isinstance(shape[axis], int) for axis in axes) for shape in shapes)


def _input_shape(value: ir.Value) -> str:
    """Return --set-shape NAME:SIZE,?,... for an input."""
    sizes = [str(dim) if isinstance(dim, int) and dim >= 0 else "?" for dim in value.shape or ()]
    return f"--set-shape {quote(f'{value.name}:')}{','.join(sizes)}"


def _set_input(value: ir.Value) -> str:
    """Return --set-input NAME=? for an input of one number, NAME=FILE.npy for another."""
    single = value.shape is not None and all(dim == 1 for dim in value.shape)
    return set_input(value.name or "", "?" if single else "FILE.npy")


def open_trips(
    model: ir.Model,
    value: ir.Value | None,
    stream: StreamInputs = NO_STREAM,
    *,
    is_known: Callable[[Sequence[str]], bool],
) -> str:
    """Return which inputs to fix so that the number of steps is known; "" if it follows from none.

    Args:
        model: The model.
        value: What the number of steps follows from, in a copy of the model.
        stream: As for `open_sizes`.
        is_known: Returns whether the numbers of steps are known once these sizes are (`tried_at`).
    """
    sources = set() if value is None else {v.name for v in _sources(value, model) if v.is_graph_input()}
    deciding = [v for v in model.graph.inputs if v.name in sources - stream.states]
    numbers = [v for v in deciding if v.dtype is not None and v.dtype.is_integer() and _is_small(v)]
    if numbers:
        return f"make them constants: {' '.join(map(_set_input, numbers))}"
    sizes = open_sizes(model, deciding[0], (0,), every=True, stream=stream) if deciding else ""
    names = [name for name in open_names(model) if set_dim(name) in sizes]
    if not sizes and not stream.fewest:
        names = open_names(model)  # the number of a nested Loop may follow from another value of a body
    if not sizes or len(names) == len(sizes.split(" --")):
        sizes = set_dims(_with_equal(model, _enough(names, is_known)))
    return f"fix the sizes of the inputs, with a number for each ?: {sizes}" if sizes else ""


def _enough(names: list[str], is_known: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return one of the sizes, or as few as needed, that make the numbers of steps known; none if they do not."""
    one = next(([name] for name in names if is_known([name])), None)
    if one or len(names) < 2 or not is_known(names):
        return one or []
    needed = list(names)
    for name in names[:_MOST_CANDIDATES]:
        others = [other for other in needed if other != name]
        needed = others if is_known(others) else needed
    return needed


def _with_equal(model: ir.Model, names: list[str]) -> list[str]:
    """Return open sizes with those that must be equal to one of them, as far as ONNX's inference shows."""
    others = [name for name in open_names(model) if name not in names]
    same, another = TRIAL // 2, TRIAL

    def fits(changed: Sequence[str]) -> bool:
        trial = clone(model)
        try:
            fix_dimensions(trial, dict.fromkeys([*names, *others], same) | dict.fromkeys(changed, another), {}, {})
        except RnnLoweringError:
            return False
        return not fault_of(trial)

    if not names or not others or fits(names) or not fits(()):
        return names
    return [*names, *_enough(others, lambda more: fits([*names, *more]))]


def tried_at(model: ir.Model, names: Iterable[str], size: int = TRIED[0]) -> ir.Model | None:
    """Return a copy of a model in which these sizes are known, and what follows; None if it cannot have them."""
    trial = clone(model)
    try:
        fix_dimensions(trial, dict.fromkeys(names, size), {}, {})
    except RnnLoweringError:
        return None
    return folded(trial) or trial


def deciding_conditions(model: ir.Model) -> str:
    """Return which inputs to set so that every If of the main graph is decided; "" if other inputs decide too, or
    other nodes have bodies."""
    holders = [node for node in model.graph if bodies_of(node)]
    conditions = [node.inputs[0] for node in holders if node.op_type == "If" and node.inputs[0] is not None]
    sources = {value for condition in conditions for value in _sources(condition, model)}
    deciding = [value for value in model.graph.inputs if value in sources]
    if len(conditions) < len(holders) or not deciding or not all(map(_is_small, deciding)):
        return ""
    return f"give fixed values to the inputs that decide: {' '.join(map(_set_input, deciding))}"


def _holds_sizes(value: ir.Value) -> bool:
    """Return whether the numbers of an integer value are sizes or positions of another value."""
    if value.dtype is None or not value.dtype.is_integer():
        return False
    for node, index in value.uses():
        data = operator_of(node).data
        if data is not None and index >= data:
            return True
        if keeps_numbers(node) and any(map(_holds_sizes, node.outputs)):
            return True
    return False


def _open_lengths(model: ir.Model, lengths: ir.Value, X: ir.Value) -> str:
    """Return which inputs of the model to fix so that sequence_lens are constant; "" if that would fix X too."""
    data = _sources(X, model)
    sources = _sources(lengths, model, _SIZES_ONLY)
    deciding = [v for v in model.graph.inputs if v in sources and not v.is_initializer()]
    if not _is_computed(lengths):
        return ""
    if not deciding and (sizes := open_sizes(model, lengths, (0,), every=True)):
        return f"fix the sizes of the inputs, with a number for each ?: {sizes}"
    if not deciding or any(v in data and not _is_small(v) for v in deciding):
        return ""
    return f"make them constants: {' '.join(map(_set_input, deciding))}"


_NO_LENGTHS = "export the model without lengths (pack_padded_sequence), or with constant lengths"


def _is_computed(value: ir.Value) -> bool:
    """Return whether a value is computed if the inputs of the model that it follows from are constants."""

    def before(node: ir.Node) -> list[ir.Node | None]:
        return [v.producer() for v in node.inputs if v is not None and node.op_type not in _SIZES_ONLY]

    def is_followed(node: ir.Node) -> bool:
        row = operator_of(node)
        return node.op_type in _SIZES_ONLY or (not bodies_of(node) and (row.exact or row.elementwise))

    return all(map(is_followed, reached([value.producer()], before)))


def _is_small(value: ir.Value) -> bool:
    """Return whether an input holds at most one number for each sequence."""
    return value.shape is not None and len(value.shape) <= 1


def _sources(value: ir.Value, model: ir.Model, stop: Container[str] = ()) -> set[ir.Value]:
    """Return the values that a value is computed from, but not through the operators `stop`."""
    owners = {body: node for node in nodes_within(model.graph) for body in bodies_of(node)}

    def before(current: ir.Value) -> Sequence[ir.Value | None]:
        node = current.producer()
        if node is None:
            return owners[current.graph].inputs if current.graph in owners else ()
        returned = (v for body in bodies_of(node) for v in body.outputs)
        return () if node.op_type in stop else (*node.inputs, *returned)

    return {*reached([value], before)}


def deciding_input(model: ir.Model, is_valid: Callable[[ir.Model], bool]) -> str:
    """Return which input to set so that an invalid branch of an If is never run; "" if there is none.

    Args:
        model: The model.
        is_valid: Returns whether a model has no invalid branch.
    """
    for name, value in list(dict.fromkeys(_candidates(model)))[:_MOST_CANDIDATES]:
        trial = clone(model)
        try:
            fix_dimensions(trial, {}, {}, input_arrays(trial, {name: value}))
        except RnnLoweringError:
            continue
        trial = folded(trial, decide=True) or trial
        if is_valid(trial):
            return f"if its branch is never run, set the input that decides ({set_input(name, str(value))})"
    return ""


def _candidates(model: ir.Model) -> Iterator[tuple[str, int]]:
    """Yield inputs, and the integers that they are compared with, also one more and one less."""
    opset = default_opset(model.opset_imports)
    for node in nodes_within(model.graph):
        if not operator_of(node).boolean:
            continue
        for value, other in permutations(node.inputs, 2):
            source = _integer_input(value)
            tensor = None if other is None else constant_of(other, opset)
            if source is not None and tensor is not None and tensor.size == 1 and tensor.dtype.is_integer():
                number = int(tensor.numpy().item())
                yield from ((source.name or "", number + step) for step in (0, 1, -1))


def _integer_input(value: ir.Value | None) -> ir.Value | None:
    """Return the integer input of the model whose elements a value has, in any shape."""
    while value is not None and (node := value.producer()) is not None:
        value = node.inputs[0] if node.inputs and keeps_numbers(node) else None
    if value is None or value.dtype is None or not value.dtype.is_integer() or not value.is_graph_input():
        return None
    return value
