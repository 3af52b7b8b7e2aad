"""ONNX's own cases of nodes at all opsets that they can be rebuilt for, in onnx's evaluator and in onnxruntime.

`python tests/support/evaluator_cases.py` writes evaluator_differs.json anew: what the evaluator computes otherwise.
"""

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.defs import OpSchema
from onnx.reference import ReferenceEvaluator
from running import session

DIFFERS = Path(__file__).with_name("evaluator_differs.json")
"""By operator: since which versions the evaluator computes something else than onnxruntime, and in which cases."""

_RANDOM = ("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial")
Feed = dict[str, Any]
Evaluate = Callable[[Path, Feed], Mapping[str, Any]]


@dataclass(frozen=True)
class NodeCase:
    """A model of one node.

    Attributes:
        name: The name of ONNX's case.
        operator: The operator of the node.
        since: The version of the operator.
        model, feed: The model and its inputs.
    """

    name: str
    operator: str
    since: int
    model: onnx.ModelProto
    feed: Feed


def schemas() -> dict[str, dict[int, OpSchema]]:
    """All versions of the operators of ONNX."""
    found: dict[str, dict[int, OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, {})[schema.since_version] = schema
    return found


def node_cases() -> Iterator[NodeCase]:
    """Yield ONNX's cases of single nodes, at the opset of each and at older ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    history = schemas()
    for case in cases:
        assert case.model is not None
        assert case.data_sets is not None
        model, inputs = case.model, case.data_sets[0][0]
        nodes = model.graph.node
        if len(nodes) != 1 or nodes[0].domain or not all(isinstance(array, np.ndarray) for array in inputs):
            continue
        operator, feed = nodes[0].op_type, dict(zip((v.name for v in model.graph.input), inputs, strict=True))
        if operator in _RANDOM:
            continue
        opset = next(entry.version for entry in model.opset_import if entry.domain == "")
        versions = sorted(version for version in history[operator] if version <= opset)
        yield NodeCase(case.name, operator, versions[-1], model, feed)
        for version, following in pairwise(versions):
            if (older := _rebuilt(model, feed, history[operator], version, following - 1)) is not None:
                yield NodeCase(case.name, operator, version, *older)


def _rebuilt(
    model: onnx.ModelProto, feed: Feed, history: Mapping[int, OpSchema], version: int, opset: int
) -> tuple[onnx.ModelProto, Feed] | None:
    """Return a case at an older opset: what was an attribute there is no input; None if the checker refuses it."""
    older, feed, schema = onnx.ModelProto(), dict(feed), history[version]
    older.CopyFrom(model)
    older.opset_import[0].version = opset
    (node,) = older.graph.node
    slots = {given.name.lower(): n for n, given in enumerate(history[max(history)].inputs)}
    for name, attribute in schema.attributes.items():
        slot = slots.get("constant_value" if (node.op_type, name) == ("Pad", "value") else name.lower(), -1)
        if len(schema.inputs) <= slot < len(node.input) and node.input[slot] in feed:
            array = feed.pop(node.input[slot])
            if not array.size:
                return None
            several = attribute.type in (OpSchema.AttrType.INTS, OpSchema.AttrType.FLOATS)
            node.attribute.append(
                helper.make_attribute(name, array.tolist() if several else array.reshape(-1)[0].item())
            )
            kept = [value for value in older.graph.input if value.name != node.input[slot]]
            del older.graph.input[:]
            older.graph.input.extend(kept)
            node.input[slot] = ""
    while node.input and not node.input[-1]:
        node.input.pop()
    try:
        onnx.checker.check_model(older)
    except onnx.checker.ValidationError:
        return None
    return older, feed


def difference(case: NodeCase, evaluate: Evaluate, path: Path) -> str | None:
    """Return how an evaluator differs from onnxruntime; "" if it does not, None if one of them does not run."""
    try:
        expected = session(case.model, optimize=False).run(None, case.feed)
        onnx.save(case.model, path)
        with np.errstate(all="ignore"):
            found = evaluate(path, case.feed)
    except Exception:  # neither has a common error
        return None
    for n, array in enumerate(expected):
        if f"{n}:0" in found and isinstance(array, np.ndarray) and array.dtype.kind in "fiub":
            truth = np.asarray(found[f"{n}:0"])
            if truth.shape != array.shape:
                return f"output {n} is {list(truth.shape)}, not {list(array.shape)}"
            if wrong := int(_apart(truth, array).sum()):
                return f"{wrong} of {array.size} elements of output {n}"
    return ""


def _apart(truth: Any, array: Any) -> Any:
    if array.dtype.kind != "f":
        return truth != array
    rtol = 2e-2 if array.dtype.itemsize == 2 else 1e-3
    size = np.abs(np.where(np.isfinite(array), array, 0)).max(initial=1e-3)
    a, b = truth.astype(np.float64), array.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return ~((np.abs(a - b) <= rtol * np.abs(b) + 1e-5 * size) | (a == b) | (np.isnan(a) & np.isnan(b)))


def plain(path: Path, feed: Feed) -> Mapping[str, Any]:
    """The evaluator as onnx has it."""
    outputs: Any = ReferenceEvaluator(onnx.load(path)).run(None, feed)
    return {f"{n}:0": output for n, output in enumerate(outputs)}


def main() -> None:
    differs: dict[str, dict[str, list[str]]] = {}
    compared = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in node_cases():
            text = difference(case, plain, Path(folder) / "node.onnx")
            compared += text is not None
            if text:
                differs.setdefault(case.operator, {}).setdefault(str(case.since), []).append(case.name)
    held = {"onnx": onnx.__version__, "compared": compared, "differs": differs}
    DIFFERS.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{compared} cases were compared, see {DIFFERS.name}\n")


if __name__ == "__main__":
    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"
    main()
