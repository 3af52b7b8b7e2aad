"""Faults of exporters that a file shows: the model is read as it is, and a warning tells what to do."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.spec.node import RecurrentSpec

_FX_NODE = "pkg.torch.onnx.fx_node"
"""Key of the text in which PyTorch's newer exporter says what a node was."""


def export_faults(model: ir.Model, node: ir.Node, spec: RecurrentSpec) -> tuple[str, ...]:
    """Return what an exporter wrote wrongly, as warnings.

    PyTorch computes a GRU as with linear_before_reset = 1. Its newer exporter wrote 0 with onnxscript 0.5.7 to
    0.7.0, whatever the version of torch (onnxscript #2852, pytorch #189225); the older one has always written 1.
    """
    if spec.op_type != "GRU" or spec.linear_before_reset or not _is_gru_of_pytorch(model, node):
        return ()
    return (
        f"{spec.node}: PyTorch's exporter left out linear_before_reset = 1, so the model computes other numbers "
        "than the net; export it again with torch 2.15, onnxscript 0.7.1 or later, or dynamo=False",
    )


def _is_gru_of_pytorch(model: ir.Model, node: ir.Node) -> bool:
    """Return whether PyTorch's newer exporter made a node from a torch.nn.GRU: by its metadata, or where these are
    gone by the name that it gives nodes."""
    made_from = node.metadata_props.get(_FX_NODE)
    if made_from is not None:
        return "aten.gru." in made_from
    return model.producer_name == "pytorch" and (node.name or "").lower().startswith("node_gru_")
