"""Print sizes and errors of a quantized model, original and lowered: the table of docs/quantization.md.

PYTHONPATH=tests:tests/support python benchmarks/quantization.py
"""

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from paths import MODELS
from running import nodes, run

import rnn_lowering as rl

MODEL = MODELS / "exported/nets/nsnet2_op12.onnx"
STEPS = 8


def main() -> None:
    """Print the table."""
    logging.disable(logging.WARNING)
    original = onnx.load(MODEL)
    feeds = [{"logspec": x} for x in np.random.default_rng(0).standard_normal((4, 1, STEPS, 161), np.float32)]
    print("| model | bytes | dynamic: bytes | integer products | error | static QDQ: bytes | error |")
    print("|---|---|---|---|---|---|---|")
    form: Any
    for form in ("GRU nodes", "scan", "loop", "unroll"):
        sized: Any = {"b": 1, "t": STEPS}
        model = original if form == "GRU nodes" else rl.lower(original, form, dims=sized)
        with tempfile.TemporaryDirectory() as folder:
            print(_row(form, model, original, feeds, Path(folder)))


def _row(form: str, model: onnx.ModelProto, original: onnx.ModelProto, feeds: list[Any], folder: Path) -> str:
    source, dynamic, static = (folder / f"{name}.onnx" for name in ("float", "dynamic", "static"))
    onnx.save(model, source)
    options = {"EnableSubgraph": True}
    quantize_dynamic(source, dynamic, weight_type=QuantType.QUInt8, extra_options=options)
    quantize_static(source, static, _Reader(feeds), extra_options=options)
    operators = [node.op_type for node in nodes(onnx.load(dynamic))]
    integer = operators.count("MatMulInteger")
    of = integer + sum(operators.count(name) for name in ("MatMul", "Gemm")) + 2 * operators.count("GRU")
    cells = [form, f"{source.stat().st_size:,}", f"{dynamic.stat().st_size:,}", f"{integer} of {of}"]
    cells += [_error(dynamic, original, feeds), f"{static.stat().st_size:,}", _error(static, original, feeds)]
    return f"| {' | '.join(cells)} |"


def _error(path: Path, original: onnx.ModelProto, feeds: list[Any]) -> str:
    quantized = onnx.load(path)
    return f"{max(float(np.abs(run(original, f)['gain'] - run(quantized, f)['gain']).max()) for f in feeds):.1e}"


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: list[Any]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> Any:
        return next(self.feeds, None)


if __name__ == "__main__":
    main()
