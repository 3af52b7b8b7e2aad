"""Which of ONNX's operators a client computes, by ONNX's own tests of single nodes.

PYTHONPATH=tests:tests/support python -m clients.operators CLIENT ...    measures, and stores the outcomes

Each test runs as ONNX has it and, unless that is right, as the node is in a net: only the data is an input.
"""

import itertools
import json
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from cases import Arrays
from onnx import TensorProto, helper, numpy_helper
from running import OF_RUNTIMES, assert_close, run

from clients.driving import drive
from clients.environments import CLIENTS, HERE, make, version
from rnn_lowering.targets.onnx_tests import modes_of

Item = TypeVar("Item")
STORED = HERE.parents[1] / "rnn_lowering" / "targets" / "onnx_tests.json"

LOWERED = frozenset(("RNN", "GRU", "LSTM", "LinearAttention", "CausalConvWithState", "Loop", "Scan"))
"""Those that this package writes in another way."""

RANDOM = frozenset(("Bernoulli",))
"""Those whose numbers no other library can know."""

OPSET = 17
"""Of a test where its node means the same there: most runtimes know older operators better than new ones."""

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
TYPES = {FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8}
PLAIN = {FLOAT, TensorProto.INT64, TensorProto.INT32}
"""The types that every driver takes as an input."""

TOLERANCES = OF_RUNTIMES | {"float32": (1e-3, 1e-5)}
"""rtol and atol by precision: what may differ; atol of the largest number, or of 1. ONNX's tests have this rtol."""

SECONDS = 30
"""The most that a test may take in a client."""


@dataclass(frozen=True)
class NodeTest:
    """A test of ONNX: a node with its inputs and the outputs that it must compute.

    Attributes:
        since: The version of its operator.
        of_doubles: Whether ONNX has it in float64.
    """

    name: str
    operator: str
    since: int
    model: onnx.ModelProto
    feed: Arrays
    expected: Arrays
    of_doubles: bool = False

    @property
    def floats(self) -> bool:
        """Whether it computes with float32."""
        return FLOAT in _types(self.model)


@cache
def node_tests() -> dict[str, list[NodeTest]]:
    """ONNX's tests by operator: those with float32; of an operator without such, those with float64, in float32; of
    one without these, those with integers or bool."""
    from onnx.backend.test.case.node import collect_testcases

    tests: dict[str, list[NodeTest]] = {}
    with np.errstate(all="ignore"):
        for case in collect_testcases(None):
            for test in _of(case):
                tests.setdefault(test.operator, []).append(test)
    return {operator: _preferred(tests[operator]) for operator in sorted(tests)}


def _preferred(tests: list[NodeTest]) -> list[NodeTest]:
    floats = [test for test in tests if test.floats]
    return [test for test in floats if not test.of_doubles] or floats or tests


def _types(model: onnx.ModelProto) -> set[int]:
    return {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}


def _of(case: Any) -> Iterator[NodeTest]:
    """Yield the test of a case that has one node, which we do not write in another way, and plain tensors that have
    elements: what a client does with empty ones says little about nets."""
    graph = case.model.graph
    if len(graph.node) != 1 or graph.node[0].domain or graph.node[0].op_type in LOWERED | RANDOM:
        return
    values, of_doubles = (*graph.input, *graph.output), DOUBLE in _types(case.model)
    if not _types(case.model) <= {*TYPES, DOUBLE}:
        return
    arrays = {v.name: np.asarray(a) for v, a in zip(values, itertools.chain(*case.data_sets[0]), strict=True)}
    if not all(a.size for a in arrays.values()):
        return
    feed, expected = ({v.name: _single(arrays[v.name]) for v in side} for side in (graph.input, graph.output))
    given = _with_float32(case.model) if of_doubles else case.model
    if of_doubles and not _right(given, feed, expected):
        return
    model = _at_common_opset(given, feed, expected)
    operator = graph.node[0].op_type
    since = onnx.defs.get_schema(operator, model.opset_import[0].version, "").since_version
    yield NodeTest(case.name, operator, since, model, feed, expected, of_doubles)


def _single(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float32) if a.dtype == np.float64 else a


def _with_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with float32 in place of float64: ONNX tests Einsum, CumSum and others in that alone."""
    copy = _at(model, model.opset_import[0].version)
    for value in (*copy.graph.input, *copy.graph.output):
        kind = value.type.tensor_type
        kind.elem_type = FLOAT if kind.elem_type == DOUBLE else kind.elem_type
    return copy


def _right(model: onnx.ModelProto, feed: Arrays, expected: Arrays) -> bool:
    """Whether onnxruntime computes what a test expects."""
    try:
        return _fault(run(model, feed), expected) == ""
    except Exception:  # onnx and onnxruntime have no common error
        return False


def _at_common_opset(model: onnx.ModelProto, feed: Arrays, expected: Arrays) -> onnx.ModelProto:
    """A copy at the first opset from `OPSET` on at which the node means the same; at its own if there is none."""
    own = _at(model, model.opset_import[0].version)
    versions = {OPSET, *_versions()[model.graph.node[0].op_type]}
    older = (_at(model, opset) for opset in sorted(versions) if opset >= OPSET)
    return next((copy for copy in older if _same_at(copy, own, feed, expected)), own)


def _at(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.opset_import[:]
    copy.opset_import.append(helper.make_opsetid("", opset))
    copy.ir_version = helper.find_min_ir_version_for(copy.opset_import)
    return copy


@cache
def _versions() -> dict[str, list[int]]:
    """The versions of ONNX's operators."""
    versions: dict[str, list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            versions.setdefault(schema.name, []).append(schema.since_version)
    return versions


def _same_at(older: onnx.ModelProto, own: onnx.ModelProto, feed: Arrays, expected: Arrays) -> bool:
    operator = own.graph.node[0].op_type
    try:
        schemas = [onnx.defs.get_schema(operator, m.opset_import[0].version, "") for m in (older, own)]
        if schemas[0].deprecated:
            return False
        if schemas[0].since_version == schemas[1].since_version:
            return True
        onnx.checker.check_model(older, full_check=True)
    except Exception:  # the checker and onnx have no common error
        return False
    return _right(older, feed, expected)


def in_a_net(test: NodeTest) -> NodeTest:
    """The test with all inputs but the first as initializers, without optional outputs behind the first, and with
    types that every driver takes."""
    model = onnx.ModelProto()
    model.CopyFrom(test.model)
    graph = model.graph
    expected = _without_optional_outputs(model, test)
    data = {} if _is_parameter(test) else {v.name: v for v in graph.input[:1]}
    graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in test.feed.items() if name not in data)
    del graph.input[:]
    feed: Arrays = {}
    for name, value in data.items():
        kind, given = value.type.tensor_type.elem_type, test.feed[name]
        if kind not in PLAIN:
            graph.node.insert(0, helper.make_node("Cast", [f"{name}_given"], [name], to=kind))
            name, kind, given = f"{name}_given", TensorProto.INT32, given.astype(np.int32)
        elif kind == FLOAT:  # a node that does nothing must not join an input and an output
            graph.node.insert(0, helper.make_node("Neg", [f"{name}_given"], [name]))
            name, given = f"{name}_given", -given
        graph.input.append(helper.make_tensor_value_info(name, kind, given.shape))
        feed[name] = given
    return NodeTest(test.name, test.operator, test.since, model, feed, _as_floats(model, feed, expected))


def _without_optional_outputs(model: onnx.ModelProto, test: NodeTest) -> Arrays:
    """Remove the optional outputs of a node behind the first: nets have the Mean of LayerNormalization nowhere."""
    node, schema = model.graph.node[0], onnx.defs.get_schema(test.operator, model.opset_import[0].version, "")
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    while (
        len(node.output) > 1
        and len(schema.outputs) >= len(node.output)
        and (schema.outputs[len(node.output) - 1].option == optional)
    ):
        node.output.pop()
    kept = [value for value in model.graph.output if value.name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return {name: array for name, array in test.expected.items() if name in node.output}


def _is_parameter(test: NodeTest) -> bool:
    """Whether even the first input is a constant in a net, as the shape of ConstantOfShape is."""
    return all(a.ndim == 0 or (a.ndim == 1 and a.dtype.kind == "i") for a in test.feed.values())


def _as_floats(model: onnx.ModelProto, feed: Arrays, expected: Arrays) -> Arrays:
    """Make float32 of the outputs of other types; give a model without inputs one that is added, and is 0."""
    graph, shown = model.graph, {}
    if not feed:
        rank = max(max(a.ndim for a in expected.values()), 1)
        feed["zero"] = np.zeros([1] * rank, np.float32)
        graph.input.append(helper.make_tensor_value_info("zero", FLOAT, [1] * rank))
    for value in list(graph.output):
        name, a = value.name, expected[value.name]
        if value.type.tensor_type.elem_type != FLOAT:
            graph.node.append(helper.make_node("Cast", [name], [f"{name}_float"], to=FLOAT))
            name, a = f"{name}_float", a.astype(np.float32)
        if "zero" in feed:
            graph.node.append(helper.make_node("Add", [name, "zero"], [f"{name}_shown"]))
            name, a = f"{name}_shown", a + feed["zero"]
        shown[name] = a
    del graph.output[:]
    graph.output.extend(helper.make_tensor_value_info(name, FLOAT, a.shape) for name, a in shown.items())
    return shown


def outcomes(client: str, tests: Sequence[NodeTest]) -> dict[str, str]:
    """By test, "right", "wrong" or "rejected": the better of a test as it is and in a net."""
    found = judged(client, tests)
    again = judged(client, [in_a_net(test) for test in tests if found[test.name] != "right"])
    return {name: min(each, again.get(name, each), key=KINDS.index) for name, each in found.items()}


def outcomes_at_once(client: str, tests: Sequence[NodeTest]) -> dict[str, str]:
    """The same by one run, which can be left out where nothing changed: see runs.py."""
    nets = {test.name: replace(in_a_net(test), name=f"{test.name} in a net") for test in tests}
    found = judged(client, [*tests, *nets.values()])
    return {name: min(found[name], found[net.name], key=KINDS.index) for name, net in nets.items()}


KINDS = ("right", "wrong", "rejected")


def judged(client: str, tests: Sequence[NodeTest]) -> dict[str, str]:
    """By test, what became of it as it is."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = {test.name: (test.model, test.feed) for test in tests}
        got = drive(client, jobs, Path(folder), seconds=SECONDS)
    precision = CLIENTS[client].precision if client in CLIENTS else "float32"
    return {test.name: _kind(got[test.name], test.expected, precision) for test in tests}


def _kind(got: Arrays | str, expected: Arrays, precision: str) -> str:
    if isinstance(got, str):
        return "rejected"
    return "wrong" if _fault(got, expected, precision) else "right"


def _fault(got: Mapping[str, Any], expected: Arrays, precision: str = "float32") -> str:
    rtol, atol = TOLERANCES[precision]
    largest = max(
        (np.abs(a[np.isfinite(a)]).max(initial=1) for a in expected.values() if a.dtype.kind == "f"), default=1
    )
    try:
        assert_close(got, expected, precision, tolerances={precision: (rtol, atol * largest)})
    except (AssertionError, TypeError, ValueError) as error:
        return str(error) or "differs"
    return ""


def measure(client: str) -> dict[str, Any]:
    """What became of each operator's tests: of a few, and of all where none of these is right."""
    tests, most = node_tests(), 4 if CLIENTS[client].slow else 8
    first = {operator: thinned(found, most) for operator, found in tests.items()}
    became = outcomes(client, [test for found in first.values() for test in found])
    never = [name for name, few in first.items() if all(became[test.name] != "right" for test in few)]
    became |= outcomes(client, [test for name in never for test in tests[name] if test.name not in became])
    counts = {
        operator: Counter(became[t.name] for t in found if t.name in became) for operator, found in tests.items()
    }
    return {
        "version": version(client),
        "date": date.today().isoformat(),
        "onnx": onnx.__version__,
        "without float32": [operator for operator, found in tests.items() if not found[0].floats],
        "operators": {
            operator: (min(test.since for test in tests[operator]), *(count[kind] for kind in KINDS))
            for operator, count in counts.items()
        },
        "wrong with": measure_modes(
            client, [n for n, count in counts.items() if count["right"] and count["wrong"]], became
        ),
    }


def measure_modes(client: str, operators: Iterable[str], became: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """What became of the tests with modes that tell why some were wrong; `became` has those that ran already."""
    tests = {operator: telling(node_tests()[operator]) for operator in operators}
    left = [test for found in tests.values() for test in found if test.name not in became]
    every = {**became, **outcomes(client, left)}
    return {key: counts for found in tests.values() for key, counts in wrong_with(found, every).items()}


def telling(tests: Iterable[NodeTest]) -> list[NodeTest]:
    """The tests that tell something about modes: onnxruntime agrees, and no axis is resized to 1.

    It does not agree on a Resize to a smaller size with align_corners. At size 1, pytorch_half_pixel has a rule of
    its own.
    """
    return [t for t in tests if t.name not in RESIZED_TO_1 and _right(t.model, t.feed, t.expected)]


RESIZED_TO_1 = ("test_resize_downsample_sizes_linear_pytorch_half_pixel",)


def wrong_with(tests: Sequence[NodeTest], became: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """By modes what became of the tests that have them, where these made some wrong: see `are_wrong`."""
    groups: dict[frozenset[str], list[NodeTest]] = {}
    for test in tests:
        groups.setdefault(modes_in(test), []).append(test)
    counts = {modes: Counter(became[test.name] for test in group) for modes, group in groups.items()}
    return {
        f"{tests[0].operator}.{','.join(sorted(modes))}": (
            min(test.since for test in groups[modes]),
            *(count[kind] for kind in KINDS),
        )
        for modes, count in counts.items()
        if are_wrong(modes, counts)
    }


def are_wrong(modes: frozenset[str], counts: Mapping[frozenset[str], Counter[str]]) -> bool:
    """Whether modes made tests wrong, if tests with others are right.

    Most tests with them are wrong. Or some are, and none without one of them: select_last_index has no effect on
    most data. Of default modes, two thirds and more than one must be wrong: kernels and pads may be why.
    """
    right, wrong = counts[modes]["right"], counts[modes]["wrong"]
    less = [counts[modes - {mode}] for mode in modes if modes - {mode} in counts]
    explains = wrong >= min(right, 2) and any(each["right"] and not each["wrong"] for each in less)
    others = any(count["right"] for other, count in counts.items() if other != modes)
    return bool(wrong) and others and (explains or wrong > (right if modes else 2 * right + 1))


def modes_in(test: NodeTest) -> frozenset[str]:
    """The modes of a test's node that are not the default."""
    given = {a.name: helper.get_attribute_value(a) for a in test.model.graph.node[0].attribute}
    texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in given.items()}
    return modes_of(test.operator, test.model.opset_import[0].version, texts)


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of the items, evenly spread."""
    return [items[n * len(items) // most] for n in range(most)] if len(items) > most else list(items)


def stored() -> dict[str, Any]:
    """By client: version, date and onnx, the operators, each with its oldest version in the tests and how many of
    these were right, wrong and rejected, and those whose tests have no float32."""
    entries = json.loads(STORED.read_text()) if STORED.exists() else {}
    for entry in entries.values():
        entry["without float32"] = " ".join(entry.get("without float32", [])).split()
        for key in ("operators", "wrong with"):
            words = [word.rsplit(":", 1) for word in " ".join(entry.get(key, [])).split()]
            entry[key] = {name: tuple(map(int, counts.split("/"))) for name, counts in words}
    return entries


def store(entries: Mapping[str, Any]) -> None:
    """Write what `stored` reads: an operator is a word, Abs:13/1/0/0."""
    compact = {}
    for client, entry in sorted(entries.items()):
        lines = {
            key: [f"{name}:{'/'.join(map(str, counts))}" for name, counts in sorted(entry[key].items())]
            for key in ("operators", "wrong with")
        }
        lines["without float32"] = entry.get("without float32", [])
        compact[client] = {**entry, **{key: textwrap.wrap(" ".join(given), 110) for key, given in lines.items()}}
    STORED.write_text(json.dumps(compact, indent=1) + "\n")


def told(client: str, entry: Mapping[str, Any]) -> str:
    """A line for each client, and the operators that were never right."""
    never = [name for name, (_, right, *_) in entry["operators"].items() if not right]
    right = len(entry["operators"]) - len(never)
    return f"{client} {entry['version']}: {right} of {len(entry['operators'])} operators; never: {' '.join(never)}"


def main(clients: Iterable[str]) -> int:
    """Measure clients, store and print what was found; 1 where one is absent."""
    absent = {}
    for client in clients:
        if reason := make(client):
            absent[client] = reason
            continue
        entry = measure(client)
        store(stored() | {client: entry})
        print(told(client, entry), flush=True)
    print(*(f"{client}: {reason}" for client, reason in absent.items()), sep="\n", end="")
    return int(bool(absent))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or CLIENTS))
