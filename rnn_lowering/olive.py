"""The surgeon `LowerRecurrent` for Olive's GraphSurgeries, which importing this module registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from rnn_lowering.api import lower
from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.options import Lowering
from rnn_lowering.targets.names import FormName, TargetName

try:
    from olive.passes.onnx.graph_surgeries import Surgeon
except ImportError as missing:
    raise RnnLoweringError(
        f"the surgeon needs Olive and what it imports ({missing})", hint="pip install olive-ai requests"
    ) from missing


class LowerRecurrent(Surgeon):  # type: ignore[misc]
    """Replaces the recurrent nodes of a model. Its parameters are attributes of `Lowering`.

    In a configuration of Olive:

        "type": "GraphSurgeries",
        "surgeries": [{"surgeon": "LowerRecurrent", "to": "unroll", "dims": {"seq": 16}}]

    Raises:
        RnnLoweringError: As `rl.lower`.
    """

    def __init__(
        self,
        to: FormName = "auto",
        target: TargetName = "portable",
        dims: Mapping[str, int] | None = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        stream: str | None = None,
        dequantize: bool = False,
    ) -> None:
        super().__init__()
        self.lowering = Lowering(
            to=to,
            target=target,
            dims=dims or {},
            input_shapes=input_shapes or {},
            stream=stream,
            dequantize=dequantize,
        )

    def __call__(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return a lowered copy."""
        return lower(model, self.lowering)

    def call_ir(self, model: ir.Model) -> ir.Model:
        """Lower a model in place."""
        return lower(model, self.lowering)
