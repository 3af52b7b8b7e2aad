"""Streams in float16 and bfloat16 over thousands of frames: sums, means, counts and poolings against float64.

What has no kernel runs in float32; states and outputs are of their types between calls, and that is what counts.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from cases import Array, Arrays

import rnn_lowering as rl
from fuzz.case import Case, Outcome, agreed, attempt, fault
from fuzz.double import truth
from fuzz.driver import Host
from fuzz.nets.blocks import Sequence, Signal, linear, normalized
from fuzz.nets.net import Net
from fuzz.oracles import Running

CASES = 80
CHANNELS = 3
NEAR = {"float16": 16 * 2.0**-11, "bfloat16": 16 * 2.0**-8}
"""The largest difference from float64, relative to the largest number of an output: sixteen roundings.
Twice that of the whole in onnxruntime is right too."""

LENGTHS = (3000, 6000, 20000)
CHUNKS = ([2000], [250, 3, 17], [40, 3], [25])


def generate(rng: random.Random) -> Case:
    """Make one to three values of all frames so far, behind up to one layer, and the numbers of the input."""
    dtype = rng.choice(("float16", "float16", "float16", "bfloat16"))
    net = Net(rng, rng.choice((17, 18, 21) if dtype == "float16" else (18, 22)), dtype)
    s = Sequence(net, [Signal(net.floating("x", [1, "time", CHANNELS]), "BTC", CHANNELS)], 1, "time", 1.0, {})
    before = rng.choice(((), (), (linear,), (normalized,))) if dtype == "float16" else ()
    for block in before:
        block(s)
    for number, value in enumerate(rng.sample(VALUES, rng.choice((1, 1, 2, 3)))):
        net.node("Identity", value(net, s.as_layout("BTC")), outputs=[f"y{number}"])
        net.outputs_of(f"y{number}")
    options: dict[str, Any] = {"length": rng.choice(LENGTHS), "chunks": rng.choice(CHUNKS)}
    options["frames"] = rng.choice((0, 0, 0, 50))
    options["numbers"] = rng.choice(("around 0", "around 0.5", "around 0.5", "around 30"))
    return Case(net.whole(), {**options, "dtype": dtype, "seed": rng.randrange(1000)})


# What is calculated of all frames so far; y is [1, time, channels]


def _reduced(g: Net, y: str) -> str:
    kind = g.rng.choice(("Sum", "Mean", "Mean", "L1", "L2", "SumSquare", "LogSumExp"))
    return g.reduced(kind, y, 1, keepdims=g.rng.randrange(2))


def _variance(g: Net, y: str) -> str:
    y = g.node("Tanh", y)
    apart = g.node("Sub", y, g.reduced("Mean", y, 1))
    return g.reduced("Mean", g.node("Mul", apart, apart), 1, keepdims=0)


def _softmax_pool(g: Net, y: str) -> str:
    scores = g.node("Tanh", g.reduced("Mean", y, -1) if g.rng.random() < 0.5 else y)
    return g.reduced("Sum", g.node("Mul", g.node("Softmax", scores, axis=1), y), 1, keepdims=0)


def _ratio_of_sums(g: Net, y: str) -> str:
    """The mean of the frames that a gate chooses."""
    gate = g.node("Sigmoid", g.node("Tanh", y))
    summed = (g.reduced("Sum", each, 1, keepdims=0) for each in (g.node("Mul", gate, y), gate))
    return g.node("Div", *summed)


def _counted(g: Net, y: str) -> str:
    loud = g.node("Cast", g.node("Greater", y, np.array(0.25)), to=g.kind)
    return g.reduced(g.rng.choice(("Sum", "Mean")), loud, 1, keepdims=0)


def _cumulated(g: Net, y: str) -> str:
    return g.node("CumSum", y, 1, exclusive=g.rng.choice((0, 0, 1)))


def _running_mean(g: Net, y: str) -> str:
    count = g.node("Range", 1, g.node("Add", g.node("Squeeze", g.size(y, 1)), 1), 1)
    return g.node("Div", g.node("CumSum", y, 1), g.node("Cast", g.unsqueeze(count, 1), to=g.kind))


def _correlated(g: Net, y: str) -> str:
    """A product over the frames, as of a covariance."""
    y = g.node("Tanh", y)
    other = g.node("Sigmoid", y)
    product = g.node("MatMul", g.turned(y, 0, 2, 1), other)
    if g.rng.random() < 0.5 and g.dtype == "float16":  # Einsum has no bfloat16
        product = g.node("Einsum", y, other, equation="btc,btd->bcd")
    return product


VALUES: tuple[Callable[[Net, str], str], ...] = (
    *(_reduced, _variance, _softmax_pool, _ratio_of_sums, _counted, _cumulated, _running_mean, _correlated),
)


def judge(case: Case) -> Outcome:
    """Compare the outputs of the whole sequence with those in float64."""
    options, dtype = case.options, case.options["dtype"]
    axis = {"time": options["frames"] or None}
    stepped = attempt(lambda: rl.lower(case.model, stream=axis))
    if isinstance(stepped, Outcome):
        return stepped
    host, feed = Host(stepped), _feed(options)
    got = host(feed, [host.call] if host.plan["frames"] else options["chunks"])[0]
    expected, whole = (run(host.flushed(feed)) for run in (partial(truth, case.model), Running(case.model)))
    compared = 0
    for name, array in got.items():
        true, own = expected[name], whole[name]
        if host.plan["outputs"][name] is not None:
            true, own = (host.of_sequence(name, each, options["length"]) for each in (true, own))
        if array.shape != true.shape:
            return fault("another shape", f"'{name}' is {array.shape}, not {true.shape}", compared)
        apart = _apart(array, true)
        if not apart <= max(NEAR[dtype], 2 * _apart(own, true)):
            return fault("not within the type", f"'{name}' is {apart:.2g} from float64", compared)
        compared += 1
    return agreed(compared)


def _apart(got: Array, true: Array) -> float:
    """Return the largest difference from float64, relative to the largest number; what overflows is infinite."""
    with np.errstate(all="ignore"):
        same = got == true.astype(got.dtype)
        apart = np.where(same, 0, np.abs(got.astype(np.float64) - true))
    largest = float(apart.max())
    return largest / max(1e-3, float(np.abs(true).max())) if np.isfinite(largest) else np.inf


def _feed(options: dict[str, Any]) -> Arrays:
    rng, length = np.random.default_rng(options["seed"]), options["length"]
    middle = float(options["numbers"].split()[1])
    numbers = middle + rng.uniform(-0.5, 0.5, (1, length, CHANNELS)) * max(1.0, middle)
    held = Net(random.Random(0), 17, options["dtype"]).floats
    return {"x": numbers.astype(held)}
