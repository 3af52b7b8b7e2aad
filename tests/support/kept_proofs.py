"""Proofs for tests: many models are compared in several tests, and a proof takes longer than the comparison."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import onnx
import pytest

from rnn_lowering.compare import node_by_node
from rnn_lowering.compare.proof import of_nodes
from rnn_lowering.compare.proof.obligations import Claim, prove
from rnn_lowering.compare.proof.polynomials import Effort, UnprovenError
from rnn_lowering.compare.streams import proofs

_kept: dict[tuple[Any, ...], tuple[int | UnprovenError | None, int]] = {}
"""By claim: the steps or why it is not proven, and what that took."""


def keep_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a claim that an earlier test proved count as proven, and one that it did not as unproven."""
    monkeypatch.setattr(of_nodes, "prove", _proved_once)


def leave_out_proofs_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams be compared only, for tests that look at no proof."""
    monkeypatch.setattr(proofs, "stream_proofs", lambda *_: ())


def leave_out_proofs_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes be compared only, for tests that look at no proof."""
    monkeypatch.setattr(node_by_node, "proofs_of", lambda *_, **__: ())


def _proved_once(claim: Claim, effort: Effort) -> int | None:
    layers = () if claim.ahead is None else claim.ahead.layers
    models = [model.SerializeToString(deterministic=True) for model in (*claim.nodes, *layers, claim.lowered)]
    key = (*(sha256(model).digest() for model in models), repr(replace(claim, nodes=(), lowered=onnx.ModelProto())))
    if any(b"location" in model for model in models):  # numbers in a file, which may change
        return prove(claim, effort)
    if key in _kept:
        effort.take(_kept[key][1])
    else:
        left = effort.left
        try:
            found: int | UnprovenError | None = prove(claim, effort)
        except UnprovenError as error:
            if effort.is_spent:  # because of the nodes before, or since it was given up
                raise
            found = error
        _kept[key] = found, left - effort.left
    result, _ = _kept[key]
    if isinstance(result, UnprovenError):
        raise result
    return result
