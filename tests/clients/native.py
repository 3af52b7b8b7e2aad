"""Measure which recurrent nodes a runtime computes right itself, and beside the rule of its target:

    PYTHONPATH=tests:tests/support python -m clients.native NAME [--cases 600] [--outside 200] [--seed 0]

Random nodes run in the runtime, on two feeds of other sizes where sizes are open. Those inside the rule run as
`native=True` leaves them, and all of them must be right; the others run as they are, to see what could be added.
The expected numbers are float64. A node whose states grow without bound is left out.
"""

import argparse
import dataclasses
import json
import random
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from cases import FUNCTIONS, Arrays, Case, feed, model, values
from oracle import DEFAULT_ACTIVATIONS, GATES, evaluate

import rnn_lowering as rl
from clients import runs
from clients.driving import Job, judge, read, run_python, write
from clients.environments import CLIENTS, HERE, PACKAGED, driver
from rnn_lowering.targets.native import NativeRule, Speed, features
from rnn_lowering.targets.table import TARGETS

DRIVER = HERE / "drivers" / "again.py"
LOADED_ANEW = ("onnxruntime-web", "onnxruntime-webgpu")
"""Clients whose drivers keep no model."""
AT_ONCE = 25
"""Models in one process of the runtime."""

LARGEST = 2.0**23
"""Of a state: float32 rounds a larger one by more than 1, and a gate that is nearly 0 takes that into small
numbers."""

OPEN = {"symbolic": "TN", "batch": "N", "length": "T"}
BESIDE = "beside_"


Prepared: TypeAlias = "dict[str, tuple[Trial, onnx.ModelProto]]"


@dataclass(frozen=True)
class Trial:
    """A node, or two on one X, and what else the model has.

    Attributes:
        case: The node.
        opset: Of the model.
        beside: A second node on the same X.
        extra: What the model has beside: "X turned", X with its first axes swapped; "X twice", X + 1; "Y turned",
            Y with its first axes swapped; "layer", a node like the first on Y, with W and R only.
        all_named: Whether outputs that nothing uses have names.
    """

    case: Case
    opset: int
    beside: Case | None = None
    extra: str = ""
    all_named: bool = False

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """T and N of the feeds."""
        T, N, held = self.case.T, self.case.N, OPEN.get(self.case.x, "")
        return [(T, N), (T + 3 if "T" in held else T, N + 2 if "N" in held else N)]

    @property
    def open_axes(self) -> dict[str, dict[int, str]]:
        """By input: its axes that are open, with the name of the size."""
        held, layout = OPEN.get(self.case.x, ""), self.case.attributes.get("layout", 0)
        steps = {layout: "T", 1 - layout: "N"}
        axes = {"X": {axis: size for axis, size in steps.items() if size in held}}
        if "N" in held:
            axes |= {"sequence_lens": {0: "N"}, "initial_h": {1 - layout: "N"}}
            axes |= {"initial_c": axes["initial_h"]}
            axes |= {BESIDE + name: by for name, by in axes.items() if name != "X"}
        return axes


def trials(seed: int) -> Iterator[Trial]:
    """Random trials without end."""
    for number in range(sys.maxsize):
        trial = random_trial(random.Random(f"{seed} {number}"), f"n{seed}_{number}")
        if not _unbounded(trial):
            yield trial


def random_trial(rng: random.Random, name: str) -> Trial:
    T, N, I = rng.choice((1, 2, 3, 4, 5, 9)), rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 3, 4, 8))  # noqa: E741
    x = rng.choices(("static", "symbolic", "length", "batch", "transposed", "known"), (8, 2, 3, 2, 1, 0.3))[0]
    case = random_case(rng, name, T, N, I, x)
    if x in ("symbolic", "batch"):  # a constant would have one batch size
        case = dataclasses.replace(case, states_from="input", lengths_from="input")
    beside = None
    if case.scope == "main" and x in ("static", "length", "symbolic") and rng.random() < 0.12:
        beside = dataclasses.replace(random_case(rng, f"{name}b", T, N, I, x), scope="main")
        layout = {"layout": 1} if case.attributes.get("layout") else {}
        kept = {k: v for k, v in beside.attributes.items() if k != "layout"}
        beside = dataclasses.replace(beside, attributes=kept | layout, states_from="input", lengths_from="input")
    opset = rng.choice([each for each in case.opsets if 7 <= each <= 24 and (each < 23 or rng.random() < 0.1)])
    opset = max(opset, 14) if "layout" in case.attributes else opset
    extra = ""
    if beside is None and case.scope == "main" and rng.random() < 0.4:
        extra = rng.choice(("X turned", "X twice", "Y turned", "layer"))
        if extra in ("Y turned", "layer") and "Y" not in case.outputs:
            case = dataclasses.replace(case, outputs=("Y", *case.outputs))
        extra = "" if extra == "layer" and "layout" in case.attributes else extra
    return Trial(case, opset, beside, extra, rng.random() < 0.3)


def random_case(rng: random.Random, name: str, T: int, N: int, I: int, x: Any) -> Case:  # noqa: E741
    """A case of these sizes, in which each feature is there at times."""

    def at_times(probability: float) -> bool:
        return rng.random() < probability

    op = rng.choice(list(GATES))
    attributes: dict[str, Any] = {}
    if direction := rng.choices(("", "forward", "reverse", "bidirectional"), (5, 2, 2, 3))[0]:
        attributes["direction"] = direction
    if op == "GRU":
        attributes["linear_before_reset"] = rng.choice((0, 1, 1))
    if op == "LSTM" and at_times(0.06):
        attributes["input_forget"] = 1
    if at_times(0.1):
        attributes["clip"] = rng.choice((0.3, 1.0, 50.0))
    if at_times(0.07):
        attributes["layout"] = 1
    attributes |= _activations(rng, op, 2 if direction == "bidirectional" else 1)
    optional = [symbol for symbol in ("B", "initial_h", "initial_c") if at_times(0.5)]
    optional += [
        symbol for symbol, probability in {"P": 0.15, "sequence_lens": 0.12}.items() if at_times(probability)
    ]
    results = ["Y", "Y_h", *(["Y_c"] if op == "LSTM" else [])]
    grows = not {"Sigmoid", "Tanh"}.issuperset(attributes.get("activations", ()))
    lengths = (T,) * N if at_times(0.4) else tuple(rng.randint(0, T) for _ in range(N))
    return Case(
        name,
        op,
        attributes,
        T=T,
        N=N,
        I=I,
        H=rng.choice((1, 2, 3, 4, 5, 16)),
        optional=tuple(optional),
        outputs=tuple(rng.sample(results, rng.randint(1, len(results)))),
        lengths=lengths,
        fill={"P": 0.0} if at_times(0.3) else {"initial_c": 0.0} if at_times(0.2) else {},
        x_scale=1.0 if grows else rng.choice((1.0, 1.0, 8.0)),
        x=x,
        weights=rng.choices(("initializer", "constant", "node", "input"), (8, 1, 2, 2))[0],
        lengths_from=rng.choice(("input", "initializer")),
        states_from=rng.choice(("input", "input", "initializer")),
        trimmed=at_times(0.5),
        hidden_size=not at_times(0.1),
        scope="if" if at_times(0.07) else "main",
    )


def _activations(rng: random.Random, op: str, directions: int) -> dict[str, Any]:
    """None; the defaults by name, at times in lower case; some that any runtime has; any."""
    default = DEFAULT_ACTIVATIONS[op]
    kind = rng.choices(("none", "default", "lower", "few", "twice", "any"), (14, 2, 1, 2, 1, 1))[0]
    if kind == "none":
        return {}
    if kind in ("default", "lower"):
        names = [*default] * directions
        return {"activations": [name.lower() if kind == "lower" else name for name in names]}
    pool = ("Sigmoid", "Tanh", "Relu") if kind != "any" else FUNCTIONS
    count = len(default)
    own = [rng.choice(pool) for _ in range(count)]
    names = own * directions if kind == "few" else [rng.choice(pool) for _ in range(count * directions)]
    return {"activations": names}


# Models, inputs and outputs


def model_of(trial: Trial) -> onnx.ModelProto:
    made = model(trial.case, trial.opset)
    if trial.all_named:
        _name_all(made)
    if trial.beside is not None:
        other = model(trial.beside, trial.opset)
        _rename(other, BESIDE)
        for field in ("node", "initializer", "output"):
            getattr(made.graph, field).extend(getattr(other.graph, field))
        made.graph.input.extend(value for value in other.graph.input if value.name != "X")
    if trial.extra:
        _add_extra(made, trial)
    return made


def _add_extra(made: onnx.ModelProto, trial: Trial) -> None:
    """Add what the trial has beside its node, and an output Z."""
    rank = 4 if trial.extra in ("Y turned", "layer") else 3
    node, graph = onnx.helper.make_node, made.graph
    if trial.extra == "X turned":
        graph.node.append(node("Transpose", ["X"], ["Z"], perm=[1, 0, 2]))
    elif trial.extra == "X twice":
        graph.node.append(node("Add", ["X", "X"], ["Z"]))
    elif trial.extra == "Y turned":
        graph.node.append(node("Transpose", ["Y"], ["Z"], perm=[2, 1, 0, 3]))
    else:
        upper, shape = _upper(trial), [0, 0, len(trial.case.reverse) * trial.case.H]
        other = model(upper, trial.opset)
        weights = {t.name: onnx.numpy_helper.to_array(t) for t in other.graph.initializer}
        for name in ("W", "R"):
            graph.initializer.append(onnx.numpy_helper.from_array(weights[name], f"upper_{name}"))
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(shape, np.int64), "upper_shape"))
        graph.node.append(node("Transpose", ["Y"], ["upper_t"], perm=[0, 2, 1, 3]))
        graph.node.append(node("Reshape", ["upper_t", "upper_shape"], ["upper_X"]))
        own = dict(upper.attributes)
        graph.node.append(
            node(upper.op_type, ["upper_X", "upper_W", "upper_R"], ["Z"], "upper", hidden_size=upper.H, **own)
        )
    graph.output.append(onnx.helper.make_tensor_value_info("Z", 1, [None] * rank))


def _upper(trial: Trial) -> Case:
    """The layer above."""
    case, name = trial.case, f"{trial.case.name} upper"
    width = len(case.reverse) * case.H
    return dataclasses.replace(
        case, name=name, I=width, optional=(), outputs=("Y",), fill={}, x="static", weights="initializer"
    )


def _name_all(made: onnx.ModelProto) -> None:
    """Name the outputs that nothing uses, as PyTorch does."""
    for node in made.graph.node:
        if node.op_type in GATES:
            node.output.extend([""] * ((3 if node.op_type == "LSTM" else 2) - len(node.output)))
            node.output[:] = [name or f"unused_{n}" for n, name in enumerate(node.output)]


def _rename(made: onnx.ModelProto, prefix: str) -> None:
    """Put a prefix before every name but X."""
    graph = made.graph
    for named in (*graph.initializer, *graph.input, *graph.output):
        named.name = named.name if named.name == "X" else prefix + named.name
    for node in graph.node:
        node.name = prefix + node.name
        node.input[:] = [n if n in ("", "X") else prefix + n for n in node.input]
        node.output[:] = [n and prefix + n for n in node.output]


def runs_of(trial: Trial) -> list[tuple[Arrays, Arrays]]:
    """The inputs and the outputs of each run."""
    return [_run(trial, T, N) for T, N in trial.sizes]


def _unbounded(trial: Trial) -> bool:
    """Whether a state grows beyond `LARGEST`, as it can with Relu for a gate."""
    computed = [array for _, outputs in runs_of(trial) for array in outputs.values()]
    return any(np.abs(array).max(initial=0) > LARGEST for array in computed)


def _run(trial: Trial, T: int, N: int) -> tuple[Arrays, Arrays]:
    case = _sized(trial.case, T, N)
    given, own = feed(case), _with_weights_of(trial.case, case)
    expected = evaluate(case.op_type, case.attributes, own)
    outputs = {symbol: expected[symbol] for symbol in case.results}
    if trial.beside is not None:
        beside = _sized(trial.beside, T, N)
        theirs = _with_weights_of(trial.beside, beside) | {"X": own["X"]}
        found = evaluate(beside.op_type, beside.attributes, theirs)
        outputs |= {BESIDE + symbol: found[symbol] for symbol in beside.results}
        given |= {BESIDE + name: theirs.get(name, array) for name, array in feed(beside).items() if name != "X"}
    given = {n: _with_weights_of(trial.case, case).get(n, a) for n, a in given.items()}
    if trial.extra.startswith("X"):
        outputs["Z"] = own["X"].swapaxes(0, 1) if trial.extra == "X turned" else own["X"] + own["X"]
    if trial.extra == "Y turned":
        outputs["Z"] = expected["Y"].swapaxes(0, 2)
    if trial.extra == "layer":
        upper = _upper(trial)
        X = expected["Y"].transpose(0, 2, 1, 3).reshape(T, N, upper.I)
        outputs["Z"] = evaluate(upper.op_type, upper.attributes, values(upper) | {"X": X})["Y"]
    return given, outputs


def _sized(case: Case, T: int, N: int) -> Case:
    same = (T, N) == (case.T, case.N)
    return dataclasses.replace(case, T=T, N=N, lengths=case.lengths if same else (T,) * N)


def _with_weights_of(first: Case, case: Case) -> Arrays:
    """The values of a case, with the weights and constants that the model has."""
    own, held = values(case), values(first)
    fixed = {"W", "R", "B", "P"}
    fixed |= {"initial_h", "initial_c"} if case.states_from == "initializer" else set()
    fixed |= {"sequence_lens"} if case.lengths_from == "initializer" else set()
    return {symbol: held[symbol] if symbol in fixed else array for symbol, array in own.items()}


# In the runtime


@contextmanager
def ignoring_speed(client: str, also: frozenset[str] = frozenset()) -> Iterator[NativeRule]:
    """Let every node that is right stay native, and those with some more features."""
    target = TARGETS[client]
    assert target.native is not None
    lines = tuple(line for line in target.native.excluded if not also.issuperset(line.features))
    right = target.native.right | also
    always = dataclasses.replace(target.native, right=right, excluded=lines, speeds=(Speed((), 1, 1, {1: 9.0}),))
    TARGETS[client] = dataclasses.replace(target, native=always)
    try:
        yield always
    finally:
        TARGETS[client] = target


def prepared(trial: Trial, client: Any) -> tuple[onnx.ModelProto, str]:
    """The model as `native=True` leaves it, and why a node of it does not stay; "" if all stay."""
    original = model_of(trial)
    try:
        made, report = rl.lower(original, target=client, native=True, full=True)
    except rl.UnsupportedError as error:
        return original, error.reason
    lowered = [node.reason for node in report.nodes if node.form != "native"]
    if lowered:
        return original, lowered[0].partition("; ")[2] or lowered[0]
    return made, ""


def outcomes(client: str, models: Prepared) -> dict[str, tuple[str, str]]:
    """Run models on both feeds; return what became of each, and what is to be said."""
    both = {name: runs_of(trial) for name, (trial, _) in models.items()}
    jobs: dict[str, Job] = {name: (made, _ordered(made, both[name][0][0])) for name, (_, made) in models.items()}
    again = [(trial.open_axes, both[name][1][0]) for name, (trial, _) in models.items()]
    runs.begin(client, jobs, (repr(again), DRIVER.read_text()))
    found: dict[str, tuple[str, str]] = {}
    for start in range(0, len(jobs), AT_ONCE):
        with tempfile.TemporaryDirectory() as scratch:
            folders = {name: Path(scratch) / f"{n:03}" for n, name in enumerate([*jobs][start : start + AT_ONCE])}
            for name, folder in folders.items():
                write(folder, *jobs[name])
                again_feed = {key: both[name][1][0][key] for key in jobs[name][1]}
                np.savez(folder / "again.npz", **again_feed)  # type: ignore[arg-type]
                (folder / "open.json").write_text(json.dumps(models[name][0].open_axes))
            if client in LOADED_ANEW:
                found |= _in_two_models(client, models, both, folders)
                continue
            run_python(client, DRIVER, client, scratch, "60", lent=[PACKAGED])
            for name, folder in folders.items():
                (_, first), (_, second) = both[name]
                wanted = first | {f"{key} again": array for key, array in second.items()}
                found[name] = judge(read(folder), wanted, CLIENTS[client].precision)
    return found


def _in_two_models(
    client: str, models: Prepared, both: dict[str, list[tuple[Arrays, Arrays]]], names: Iterable[str]
) -> dict[str, tuple[str, str]]:
    """What became of models in a runtime that loads them anew for each feed."""
    found: dict[str, tuple[str, str]] = {}
    for n in (0, 1):
        with tempfile.TemporaryDirectory() as scratch:
            folders = {name: Path(scratch) / f"{k:03}" for k, name in enumerate(names)}
            for name, folder in folders.items():
                write(folder, models[name][1], _ordered(models[name][1], both[name][n][0]))
            run_python(client, driver(client), scratch, "60", lent=[PACKAGED])
            precision = CLIENTS[client].precision
            now = {name: judge(read(folder), both[name][n][1], precision) for name, folder in folders.items()}
        found |= {name: judged for name, judged in now.items() if found.get(name, ("right", ""))[0] == "right"}
    return found


def _ordered(made: onnx.ModelProto, feed: Arrays) -> Arrays:
    """A feed in the order of the model's inputs."""
    return {value.name: feed[value.name] for value in made.graph.input if value.name in feed}


def sorted_trials(
    client: str, cases: int, outside: int, seed: int, also: frozenset[str] = frozenset()
) -> tuple[Prepared, dict[str, Prepared]]:
    """Return random trials inside the rule of a client, and those outside of it by what forbids them; with `also`,
    only trials with one of these features count as inside."""
    inside: Prepared = {}
    others: dict[str, Prepared] = defaultdict(dict)
    with ignoring_speed(client) as rule, ignoring_speed(client, also) as more:
        for trial in trials(seed):
            TARGETS[client] = dataclasses.replace(TARGETS[client], native=more)
            made, fault = prepared(trial, client)
            if also and not fault:
                TARGETS[client] = dataclasses.replace(TARGETS[client], native=rule)
                if not prepared(trial, client)[1]:
                    continue
            if fault and sum(map(len, others.values())) < outside:
                others[fault][trial.case.name] = trial, made
            if not fault and len(inside) < cases:
                inside[trial.case.name] = trial, made
            if len(inside) >= cases and sum(map(len, others.values())) >= outside:
                return inside, others
    raise AssertionError("there are trials without end")


def measure(client: str, cases: int, outside: int, seed: int, also: frozenset[str] = frozenset()) -> bool:
    """Print what became of random nodes; return whether all inside the rule are right."""
    inside, others = sorted_trials(client, cases, outside, seed, also)
    found = outcomes(client, inside)
    counts = Counter(outcome for outcome, _ in found.values())
    print(f"{client}, inside the rule: {dict(counts)}", flush=True)
    for name, (outcome, said) in found.items():
        if outcome != "right":
            print(f"  {outcome}: {_shown(inside[name][0])}: {said[:200]}")
    judged = outcomes(client, {name: each for group in others.values() for name, each in group.items()})
    for fault, group in sorted(others.items()):
        print(f"  outside: {fault}: {dict(Counter(judged[name][0] for name in group))}")
    return set(counts) <= {"right"}


def _shown(trial: Trial) -> str:
    """The trial without what is the default."""
    default, case = Case("", ""), trial.case
    own = {k: v for k, v in vars(case).items() if v != getattr(default, k)} | {"opset": trial.opset}
    return f"{own} {trial.extra}{' beside ' + trial.beside.op_type if trial.beside else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clients.native", description=__doc__)
    parser.add_argument("client", choices=[name for name, target in TARGETS.items() if target.native is not None])
    parser.add_argument("--cases", type=int, default=600, help="nodes inside the rule (default: %(default)s)")
    parser.add_argument("--outside", type=int, default=200, help="nodes outside of it (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--also", default="", help="try a rule with these features too, with commas between them")
    args = parser.parse_args()
    warnings.simplefilter("ignore", rl.RnnLoweringWarning)
    return int(not measure(args.client, args.cases, args.outside, args.seed, features(args.also)))


if __name__ == "__main__":
    sys.exit(main())
