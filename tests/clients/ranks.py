"""Which ranks and types of tensors the operators of a lowered model may have in a client.

PYTHONPATH=tests:tests/support python -m clients.ranks qnn    measures, and stores the most axes in ranks.json
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from cases import Arrays
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from running import assert_near, run
from stream_models import net

from clients.driving import drive, judge
from clients.environments import CLIENTS, HERE, version

STORED = HERE / "ranks.json"

SIZES = (2, 1, 3, 2, 4, 4)
"""Of a tensor of 6 axes; one of fewer has the last of them."""

TYPES = {"float32": "float", "float16": "float16", "int32": "int32", "int64": "int64", "bool": "bool"}

QUANTIZED = {"w8a8": QuantType.QUInt8, "w8a16": QuantType.QUInt16}
"""The type between QuantizeLinear and DequantizeLinear, by the bits of weights and activations."""

COLUMNS = (*TYPES, *QUANTIZED)

ONE = "Abs Elu Exp HardSigmoid Identity LeakyRelu LogSoftmax Neg Relu Sigmoid Softmax Softplus Sqrt Tanh"
TWO = "Add Div Equal Less MatMul Max Min Mul Sub"
NODES = {
    **{op: f"z = {op} (x)" for op in ONE.split()},
    **{op: f"z = {op} (x, y)" for op in TWO.split()},
    "Cast": "z = Cast <to = 1> (x)",
    "Concat": "z = Concat <axis = {last}> (x, y)",
    "Expand": "z = Expand (x, [2, {sizes}])",
    "Gather": "z = Gather <axis = {last}> (x, [2, 0])",
    "Pad": "z = Pad (x, [{zeros}1, {zeros}0])",
    "ReduceMax": "z = ReduceMax <axes = [{last}]> (x)",
    "ReduceSum": "z = ReduceSum (x, [{last}])",
    "Reshape": "z = Reshape (x, [-1])",
    "Slice": "z = Slice (x, [1], [3], [{last}])",
    "Split": "z, w = Split <axis = {last}> (x, [1, 3])",
    "Squeeze": "u = Slice (x, [1], [2], [{last}])  z = Squeeze (u, [{last}])",
    "Transpose": "z = Transpose <perm = [{back}]> (x)",
    "Unsqueeze": "z = Unsqueeze (x, [0])",
    "Where": "c = Less (x, y)  z = Where (c, x, y)",
}
RESULTS = {"Cast": "float", "Equal": "bool", "Less": "bool"}


def job(op_type: str, dtype: str, rank: int) -> tuple[onnx.ModelProto, Arrays] | None:
    """A model of an operator and its inputs; None where onnxruntime has no such node."""
    if dtype in QUANTIZED:
        floats = job(op_type, "float32", rank)
        return None if floats is None else quantized(*floats, QUANTIZED[dtype])
    sizes, last = SIZES[-rank:], rank - 1
    listed, back = ", ".join(map(str, sizes)), ", ".join(map(str, range(last, -1, -1)))
    nodes = NODES[op_type].format(last=last, sizes=listed, zeros="0, " * last, back=back)
    given, result = f"{TYPES[dtype]}[{listed}]", RESULTS.get(op_type, TYPES[dtype])
    inputs = ["x", *(["y"] if "y)" in nodes else [])]
    more = f", {result}[] w" if "w =" in nodes else ""
    rng = np.random.default_rng(rank)
    scale = 10 if dtype.startswith("int") else 1
    feed = {name: (rng.uniform(0.2, 2, sizes) * scale).astype(dtype) for name in inputs}
    text = f"g ({', '.join(f'{given} {name}' for name in inputs)}) => ({result}[] z{more}) {{ {nodes} }}"
    try:
        model = net(text)
        run(model, feed)
    except Exception:  # of onnx or onnxruntime
        return None
    return model, feed


def quantized(
    model: onnx.ModelProto, feed: Arrays, activations: QuantType
) -> tuple[onnx.ModelProto, Arrays] | None:
    """A model with QuantizeLinear and DequantizeLinear around its operators, as onnxruntime's quantizer does it;
    None where it writes none."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "quantized.onnx")
        quantize_static(
            model,
            made,
            Once(feed),
            activation_type=activations,
            op_types_to_quantize=[node.op_type for node in model.graph.node],
        )
        found = onnx.load(made)
        return (found, feed) if any(node.op_type == "QuantizeLinear" for node in found.graph.node) else None


class Once(CalibrationDataReader):  # type: ignore[misc]
    """Gives a feed once."""

    def __init__(self, feed: Arrays) -> None:
        self._feeds = iter([feed])

    def get_next(self) -> Arrays | None:
        return next(self._feeds, None)


def outcomes(client: str, asked: Sequence[tuple[str, str, int]]) -> dict[tuple[str, str, int], str]:
    """Return "right", "wrong" or "rejects" for each operator, type and rank that onnxruntime has."""
    jobs = {f"{op} {dtype} {rank}": job(op, dtype, rank) for op, dtype, rank in asked}
    found = {name: each for name, each in jobs.items() if each is not None}
    with tempfile.TemporaryDirectory() as folder:
        got = drive(client, found, Path(folder))
    said = {name: _judged(got[name], run(*each), client, name.split()[1]) for name, each in found.items()}
    return {key: said[name] for key, name in zip(asked, jobs, strict=True) if name in said}


def _judged(got: Arrays | str, expected: Arrays, client: str, dtype: str) -> str:
    if isinstance(got, str) or dtype not in QUANTIZED:
        return judge(got, expected, CLIENTS[client].precision)[0]
    with suppress(AssertionError):
        assert_near(got, expected, _NEAR)
        return "right"
    return "wrong"


_NEAR = 0.02
"""The largest error of integers: Softplus of 16 bits is 0.007 from that of the CPU, Softmax of 8 bits 0.016."""


def most_axes(client: str) -> dict[str, dict[str, str]]:
    """Return by operator and type the highest rank that is right, "–" if none is, and one that is wrong."""
    said = outcomes(client, [(op, dtype, rank) for op in NODES for dtype in COLUMNS for rank in range(1, 7)])
    found: dict[str, dict[str, str]] = {op: {} for op in NODES}
    for op, by_type in found.items():
        for dtype in COLUMNS:
            own = {rank: outcome for (o, d, rank), outcome in said.items() if (o, d) == (op, dtype)}
            right, wrong = ([n for n, each in own.items() if each == kind] for kind in ("right", "wrong"))
            if own:
                by_type[dtype] = str(max(right, default=0) or "–") + (f", wrong at {wrong[0]}" if wrong else "")
    return found


def stored() -> dict[str, Any]:
    """By client: version, date, and the most axes by operator and type."""
    read: dict[str, Any] = json.loads(STORED.read_text())
    return read


def table(client: str) -> str:
    """What is stored as Markdown: operators that take the same share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for op, by_type in stored()[client]["axes"].items():
        rows.setdefault(tuple(by_type.get(dtype, "") for dtype in COLUMNS), []).append(op)
    lines = [f"| {', '.join(sorted(ops))} | {' | '.join(most)} |" for most, ops in sorted(rows.items())]
    return "\n".join([f"| operators | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|", *lines])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        entry = {"version": version(name), "date": date.today().isoformat(), "axes": most_axes(name)}
        STORED.write_text(json.dumps(stored() | {name: entry}, indent=1, sort_keys=True) + "\n")
        print(table(name))
