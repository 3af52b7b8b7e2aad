"""Models of real exporters, and inputs for them, in a folder beside the checkout."""

import importlib.util
import json
from functools import lru_cache
from typing import Any

import onnx
import pytest
from cases import Arrays
from oracle import GATES
from paths import MODELS

Entry = dict[str, Any]


def entries(kind: str) -> list[Entry]:
    """The models without recurrent nodes ("plain"), those that onnxruntime runs ("runs") and the others."""
    manifest = MODELS / "manifest.json"
    return [e for e in json.loads(manifest.read_text()) if _kind(e) == kind] if manifest.exists() else []


def _kind(entry: Entry) -> str:
    if not {*GATES, "DynamicQuantizeLSTM"} & entry["recurrent"].keys():
        return "plain"
    return "runs" if entry["ort"]["runs"] else "refused"


def parameters(kind: str) -> list[Any]:
    absent = pytest.param({}, marks=pytest.mark.skip(reason=f"{MODELS.name} is not there"))
    return [pytest.param(entry, id=entry["file"], marks=pytest.mark.shared) for entry in entries(kind)] or [absent]


def load(entry: Entry) -> onnx.ModelProto:
    return onnx.load(MODELS / entry["file"])


@lru_cache(maxsize=2)
def variants(file: str) -> list[tuple[str, Arrays]]:
    """The inputs for a model, by label."""
    spec = importlib.util.spec_from_file_location("feeds", MODELS / "feeds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[tuple[str, Arrays]] = module.variants(file)
    return found


def optimized(entry: Entry) -> bool:
    """Whether onnxruntime's optimizer survives the original."""
    return bool(entry["ort"]["with_optimisations"] == "ok")
