"""Functions and layers of PyTorch around a GRU, as both exporters write them.

    python functions_of_pytorch.py FOLDER [NAME.PLACE.EXPORTER ...]

PLACE is `after` the GRU, or `before` it. EXPORTER is `older` or `dynamo`, with an open time axis, or `fixed`
(dynamo). An export takes seconds, so one has many functions; each becomes a model of its own. What an exporter
cannot write leaves NAME.PLACE.EXPORTER.error. NAME.PLACE.EXPORTER.exact.npz has the runs in float64.
"""

# mypy: disable-error-code="misc, no-any-return"

import contextlib
import copy
import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from exported import numbers, save_runs
from parts import halves_left, part
from table_of_elements import ELEMENTS
from table_of_layers import LAYERS
from table_of_rows import ROWS
from torch import nn
from torch.utils import _pytree

TABLE: dict[str, Callable[..., Any]] = ELEMENTS | ROWS | LAYERS
"""By name: a function of rows [2, time, 8]; or what makes a layer, if the name begins with a capital."""

EXPORTERS = ("older", "dynamo", "fixed")
SIZE = 8
LENGTHS = (6, 9)
OPSET = 17
TOGETHER = 16
"""The functions of an export."""


class Net(nn.Module):
    """A function behind a GRU, or in front of one."""

    def __init__(self, name: str, place: str) -> None:
        super().__init__()
        self.function = function(name)
        self.is_before = place == "before"
        size = self.function(given(LENGTHS[0])).shape[-1] if self.is_before else SIZE
        torch.manual_seed(0)
        self.gru = nn.GRU(size, SIZE, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        if self.is_before:
            return self.gru(self.function(x))[0]
        return self.function(self.gru(x)[0] * 3)


class Nets(nn.Module):
    """Several of one place: those behind a GRU share it."""

    def __init__(self, names: list[str], place: str) -> None:
        super().__init__()
        self.nets = nn.ModuleList(Net(name, place) for name in names)

    def forward(self, x: torch.Tensor) -> list[Any]:
        if self.nets[0].is_before:
            return [net(x) for net in self.nets]
        rows = self.nets[0].gru(x)[0] * 3
        return [net.function(rows) for net in self.nets]


def function(name: str) -> Callable[..., Any]:
    torch.manual_seed(0)
    made = TABLE[name]
    return made().eval() if name[0].isupper() else made


def given(steps: int) -> torch.Tensor:
    return torch.from_numpy(numbers(2, steps, SIZE, seed=steps))


def exports() -> list[str]:
    """All that a function can be part of: rows of floats are a GRU's input."""
    every = []
    for name in TABLE:
        rows = function(name)(given(LENGTHS[0]))
        is_rows = isinstance(rows, torch.Tensor) and rows.dtype == torch.float32 and rows.dim() == len("NTC")
        every += [f"{name}.{place}" for place in ("after", *["before"] * is_rows)]
    return [f"{name}.{exporter}" for exporter in EXPORTERS for name in every]


def save(names: list[str], place: str, exporter: str, folder: Path) -> None:
    """Write nets as an exporter does, and their runs."""
    net = Nets(names, place).eval()
    lengths = LENGTHS[:1] if exporter == "fixed" else LENGTHS
    options: dict[str, Any] = {"input_names": ["x"], "dynamo": exporter != "older", "verbose": False}
    if exporter == "older":
        options |= {"opset_version": OPSET, "dynamic_axes": {"x": {1: "time"}}}
    elif exporter == "dynamo":
        options["dynamic_shapes"] = {"x": {1: torch.export.Dim("time", min=4, max=4096)}}
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        torch.onnx.export(net, (given(lengths[0]),), file.name, **options, external_data=False)
        whole = onnx.load(file.name)
    returned = [value.name for value in whole.graph.output]
    for name, each in zip(names, net.nets, strict=True):

        def compute(feed: Any, each: nn.Module = each) -> Any:
            with torch.no_grad():
                return [value.numpy() for value in _pytree.tree_leaves(each(torch.from_numpy(feed["x"])))]

        def compute_exactly(feed: Any, each: nn.Module = each) -> Any:
            return compute({"x": feed["x"].astype("float64")}, copy.deepcopy(each).double())

        feeds = [{"x": given(steps).numpy()} for steps in lengths]
        count, path = len(compute(feeds[0])), folder / f"{name}.{place}.{exporter}.onnx"
        onnx.save(part(whole, returned[:count]), path)
        save_runs(path, feeds, compute)
        with contextlib.suppress(RuntimeError):  # of a function that takes float32 only
            save_runs(path.with_suffix(".exact.onnx"), feeds, compute_exactly)
        returned = returned[count:]


def attempt(names: list[str], place: str, exporter: str, folder: Path) -> None:
    """Write all at once, or each part that can be."""
    for half in halves_left(names, lambda some: save(some, place, exporter, folder), folder, f"{place}.{exporter}"):
        in_child(half, place, exporter, folder)


def in_child(*arguments: Any) -> None:
    """Dynamo opens the axes of a GRU in the first export of a process only."""
    process = multiprocessing.get_context("fork").Process(target=attempt, args=arguments)
    process.start()
    process.join()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if len(sys.argv) < 2:
        print(*exports(), sep="\n")
    wanted: dict[tuple[str, str], list[str]] = {}
    for name, place, exporter in (export.split(".") for export in sys.argv[2:]):
        wanted.setdefault((place, exporter), []).append(name)
    for (place, exporter), names in wanted.items():
        for start in range(0, len(names), TOGETHER):
            in_child(names[start : start + TOGETHER], place, exporter, Path(sys.argv[1]))
