"""The stages of a lowering, in their order, and `Work`: the copy, and what they share.

Each stage is imported when the options or the model ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, RnnLoweringError
from rnn_lowering.flags import set_dim
from rnn_lowering.model.copying import clone, order_restored
from rnn_lowering.model.model_sizes import open_negative_sizes
from rnn_lowering.model.scopes import SORTED, all_graphs, repeating_nodes, sort_nodes
from rnn_lowering.nodes.kinds import imported
from rnn_lowering.options import Lowering
from rnn_lowering.passes.report import Report
from rnn_lowering.types import SizeOrSizes

if TYPE_CHECKING:
    from rnn_lowering.passes.nodes import ModelPlan


Edit = Callable[[], None]
"""What a stage does to the copy once no stage has refused the model."""


@dataclass(frozen=True)
class Stage:
    """A stage of a lowering.

    Attributes:
        asked: Whether the options and the model ask for it.
        run: The function that changes the working copy, says in the report what it did, and returns what it will do
            once no stage has refused the model, or None; named by its module, which is imported then.
    """

    asked: Callable[[Work], bool]
    run: str


def _may_adapt(work: Work) -> bool:
    return bool(work.lowering.runtime.model.adaptations) and not work.lowering.keep_rest


def _has_loops(work: Work) -> bool:
    return any(repeating_nodes(work.model))


def _may_raise(work: Work) -> bool:
    """Whether there may be something to raise; where axes were opened, each export was raised before."""
    return _has_loops(work) or (work.lowering.raise_loops and not work.lowering.open_dims)


STAGES = {
    "open axes": Stage(lambda work: bool(work.lowering.open_dims), "opening.open_dims.open_axes"),
    "fix sizes": Stage(lambda work: work.lowering.fixes_inputs, "passes.sizes.fix_sizes"),
    "raise": Stage(_may_raise, "loops.stage.raise_cells"),
    "stream": Stage(lambda work: work.lowering.stream is not None, "streaming.stage.make_stream"),
    "loops": Stage(_has_loops, "loops.stage.lower_exported"),
    "floats": Stage(lambda work: work.lowering.dequantize, "decomposition.stage.make_floats"),
    "adapt first": Stage(_may_adapt, "decomposition.stage.adapt_first"),
    "nodes": Stage(lambda work: True, "passes.nodes.lower_nodes"),
    "decompose": Stage(lambda work: work.lowering.for_a_runtime, "decomposition.stage.decompose"),
    "adapt": Stage(lambda work: True, "passes.nodes.adapt"),
}
"""By what it does, in order."""


def run_stages(work: Work, names: Iterable[str] = STAGES) -> dict[str, Edit]:
    """Run the stages that are asked for; return their edits, by stage."""
    edits = {}
    for name in names:
        stage = STAGES[name]
        if stage.asked(work):
            edit = imported(stage.run)(work)
            if edit is not None:
                edits[name] = edit
    return edits


def stages_until(end: str, *, since: str = "open axes") -> list[str]:
    """Return the names of the stages from one on, up to another one that is left out."""
    names = [*STAGES]
    return names[names.index(since) : names.index(end)]


# A lowering in progress: the working copy of a model, and what its stages share.


@dataclass(frozen=True)
class StreamInputs:
    """The inputs of a model that is a stream; none of its own for a model that is not.

    Attributes:
        states: The names of inputs that are states: no option fixes them.
        frames: By the name of an open time axis, the option that fixes the number of frames of a call.
        fewest: The options that give each call the fewest frames; empty if the model is not a stream.
        has_lengths: Whether an input has the lengths of rows.
    """

    states: frozenset[str] = frozenset()
    frames: Mapping[str, str] = field(default_factory=dict)
    fewest: str = ""
    has_lengths: bool = False

    def option(self, size: str) -> str:
        """Return the option that fixes an open size."""
        return self.frames.get(size) or set_dim(size)

    def options(self, sizes: Iterable[str | None]) -> str:
        """Return the options that fix open sizes, but for those without a name."""
        return " ".join(dict.fromkeys(self.option(size) for size in sizes if size))


NO_STREAM = StreamInputs()


@dataclass
class Work:
    """The working copy of a model, and what the stages of its lowering share.

    Attributes:
        model: The copy. A stage changes it, or puts another one in its place.
        lowering: The options.
        report: Gets what each stage did.
        original: Returns the model as it was given.
        inputs: The inputs of the stream, once it is made.
        exported: Sizes that the options give axes which they open: those that the exports have.
        inferred: Whether the values of the copy declare what inference has found.
        was_sorted: Whether the given nodes were sorted by their dependencies.
        not_raised: Why Loops and Scans are not raised, where that is asked for.
        refused: In a preview, the Loops and Scans that are refused, with their errors. None: the first is raised.
        plan: The nodes that are lowered and their forms, once they are chosen.
    """

    model: ir.Model
    lowering: Lowering
    report: Report
    original: Callable[[], ir.Model]
    inputs: StreamInputs = NO_STREAM
    exported: Mapping[str, SizeOrSizes] = field(default_factory=dict)
    inferred: bool = False
    was_sorted: bool = True
    not_raised: dict[NodeRef, str] = field(default_factory=dict)
    refused: dict[NodeRef, RnnLoweringError] | None = None
    plan: ModelPlan | None = None

    @classmethod
    def on_copy(cls, model: ir.Model, lowering: Lowering) -> Work:
        """Start on a copy of a model, which stays as it is.

        Raises:
            UnsupportedError: The model cannot be copied.
        """
        with order_restored(model):
            unsorted = sort_nodes(model)  # a copy needs that
            copy = clone(model)
        open_negative_sizes(all_graphs(copy))
        return cls(copy, lowering, Report(lowering.target), lambda: model, was_sorted=not unsorted)

    @property
    def changes(self) -> bool:
        """Whether a stage has changed the model, or will."""
        made = bool(self.chosen.every or self.report.loops or self.report.replaced or self.report.adapted)
        asked = bool(self.lowering.open_dims) or self.lowering.fixes_inputs
        return made or asked or self.report.stream is not None

    @property
    def chosen(self) -> ModelPlan:
        """The nodes and their forms, for stages behind that choice."""
        assert self.plan is not None
        return self.plan

    def sort(self) -> list[str]:
        """Sort the nodes; return a note if they were not sorted."""
        changed = sort_nodes(self.model)
        return [SORTED] if changed or not self.was_sorted else []

    def put(self, model: ir.Model) -> None:
        """Put a model in the place of the copy; of what it declares nothing is known."""
        self.model, self.inferred = model, False
