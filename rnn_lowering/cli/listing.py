"""What `--list` prints: what a lowering would do to a model, as a table, as lines, or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from rnn_lowering.cli.console import LEGEND, SIZES, Table, print_line, print_states, print_table, text_of_size
from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.model.scopes import REPEATING
from rnn_lowering.opening.lone_export import closed_axis
from rnn_lowering.options import Lowering
from rnn_lowering.passes.lower import LowerRecurrentPass
from rnn_lowering.passes.preview import REFUSED, UNSUPPORTED, Preview
from rnn_lowering.passes.report import Report
from rnn_lowering.report.use import Port

if TYPE_CHECKING:
    from rnn_lowering.nodes.spec import NodeSpec


@dataclass(frozen=True)
class Listing:
    """What a lowering would do to a model."""

    path: Path
    previews: Sequence[Preview]
    report: Report
    graph: ir.Graph

    @classmethod
    def of(cls, path: Path, model: ir.Model, lowering: Lowering) -> Listing:
        """Return the listing of a model, which is not changed."""
        previews, report = LowerRecurrentPass(lowering).preview(model)
        with suppress(RnnLoweringError):
            report.notes += filter(None, [closed_axis(model, lowering.max_nodes)])
        return cls(path, previews, report, model.graph)

    @property
    def code(self) -> int:
        """The exit code: 1 if a node cannot be lowered, 4 if one would be, else 0."""
        if any(preview.form == REFUSED for preview in self.previews):
            return 1
        return 4 if any(preview.counts for preview in self.previews) else 0

    @property
    def inputs(self) -> list[Port]:
        return [Port.of(value) for value in self.graph.inputs if not value.is_initializer()]

    @property
    def outputs(self) -> list[Port]:
        return [Port.of(value) for value in self.graph.outputs]

    def lines(self) -> Iterator[str]:
        """Yield a line for each node, as is shown of several models."""
        if not any(preview.recurrent for preview in self.previews):
            yield f"{self.path}: no recurrent nodes"
        for preview in self.previews:
            says = preview.form in (REFUSED, UNSUPPORTED)
            refusal = f": {preview.reason}; {preview.hint}".removesuffix("; ") if says else ""
            yield f"{self.path}: {preview.node}: {preview.form}{refusal}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        stream = self.report.stream
        return {
            "file": str(self.path),
            "nodes": [_data(preview) for preview in self.previews],
            "inputs": [asdict(port) for port in self.inputs],
            "outputs": [asdict(port) for port in self.outputs],
            "states": [] if stream is None else stream.to_dict()["states"],
            "notes": self.report.notes,
        }


def print_json(data: Sequence[dict[str, Any]]) -> None:
    """Print an entry for each model."""
    print(json.dumps(data, indent=1, allow_nan=False))


def print_listing(listing: Listing) -> None:
    """Print a row for each node: what it specifies and the form it would get; then the names and sizes that options
    use, the states of a stream, and hints for refused nodes."""
    titles = ("node", "operator", "scope", "direction", *SIZES, "type", "activations", "form", "why")
    table = Table(titles, folds=("why", "activations", "scope", "type", "direction"))
    previews = listing.previews
    for preview in previews:
        node, spec = preview.node, preview.spec
        unknown = "?" if preview.recurrent and node.operator not in REPEATING else ""
        operator, *cells = _spec_cells(spec) if spec else [node.operator, *[unknown] * 7]
        table.add(node.name, operator, node.scope, *cells, preview.form, preview.reason)
    if not any(preview.counts for preview in previews):
        print_line(f"{listing.path}: {_nothing_found(previews)}")
    if previews:
        print_table(table)
        print_line(LEGEND)
    print_line(f"inputs: {', '.join(map(str, listing.inputs)) or 'none'}")
    print_line(f"outputs: {', '.join(map(str, listing.outputs)) or 'none'}")
    if listing.report.stream is not None:
        print_states(listing.report.stream)
    for warning in (text for preview in previews if preview.spec for text in preview.spec.warnings):
        print_line(f"warning: {warning}")
    for hint in dict.fromkeys(preview.hint for preview in previews if preview.hint):
        print_line(f"to lower refused nodes: {hint}")
    for note in listing.report.notes:
        print_line(note)


def _data(preview: Preview) -> dict[str, Any]:
    """Return a node as plain data; sizes that are not known are null."""
    node, spec = preview.node, preview.spec
    sizes = ("seq_length", "batch_size", "input_size", "hidden_size")
    return {
        "name": node.name,
        "operator": node.operator,
        "scope": node.scope,
        "version": spec.version if spec else None,
        "direction": spec.direction if spec else None,
        "dtype": spec.dtype.name.lower() if spec else None,
        **{size: getattr(spec, size) if spec else None for size in sizes},
        "form": preview.form,
        "reason": preview.reason,
        "hint": preview.hint,
    }


def _nothing_found(previews: Sequence[Preview]) -> str:
    """Return what a list without recurrent nodes says: Loops and Scans of the model may be in it, and stay."""
    kinds = Counter(preview.node.operator for preview in previews if preview.recurrent)
    if not kinds:
        return "no recurrent nodes"
    others = " and ".join(f"{count} {kind}s" if count > 1 else f"a {kind}" for kind, count in kinds.items())
    stay = "which stays as it is" if kinds.total() == 1 else "which stay as they are"
    return f"no recurrent nodes other than {others}, {stay}"


def _spec_cells(spec: NodeSpec) -> list[str]:
    sizes = [text_of_size(n) for n in (spec.seq_length, spec.batch_size, spec.input_size, spec.hidden_size)]
    dtype = spec.dtype.name.lower()
    return [f"{spec.node.operator}-{spec.version}", spec.direction, *sizes, dtype, spec.details]
