"""Layers of RNN, GRU and LSTM, of opsets 1 to 28 and all types, in all scopes: lowered against the original."""

import random
from typing import Any

import numpy as np
import onnx

import rnn_lowering as rl
from fuzz.case import Case, Outcome, agreed, attempt, fault, reason
from fuzz.double import OVERFLOWS, within_range
from fuzz.nets.net import Net
from fuzz.nets.recurrent import Layers, in_scope, layer
from fuzz.oracles import Running, difference, feeds, steady

CASES = 120
PLACES = ("main",) * 5 + ("function", "twice", "if", "loop", "scan")
TARGETS = ("portable",) * 6 + (
    "tvm",
    "ncnn",
    "openvino",
    "tract",
    "mnn",
    "opencv",
    "onnxruntime",
    "tinygrad",
    "iree",
)
RUN = ("", "portable", "onnxruntime")
"""The targets whose models onnxruntime must load."""

TYPES = ("float32",) * 10 + ("float16", "float16", "float64", "float64", "bfloat16")


def generate(rng: random.Random) -> Case:
    """Make one to four layers in a scope, and how they are lowered."""
    opset, dtype = rng.randint(1, 28), rng.choice(TYPES)
    dtype = (
        "float32"
        if opset < 7 and dtype == "bfloat16"
        else "bfloat16"
        if opset >= 22 and rng.random() < 0.05
        else dtype
    )
    net, batch = Net(rng, opset, dtype), rng.choice((1, 2, 3, "N", "N"))
    frames, size = rng.choice((1, 2, 5, 7, "T", "T", "T")), rng.choice((1, 2, 3))
    s = Layers(net, [(net.floating("x", [frames, batch, size]), size)], batch, frames)
    if rng.random() < 0.25:
        s.lengths = net.input("lens", [batch], np.int32)
    plain = rng.random() < 0.4
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        layer(s, plain)
    _ended(s)
    model = net.whole()
    place = rng.choice(PLACES) if opset >= 9 and dtype != "bfloat16" else "main"
    if place != "main":
        model = in_scope(model, place, rng)
    return Case(model, _options(rng, s))


def _ended(s: Layers) -> None:
    """Let some values be outputs, at least the last; of old opsets with shapes, which their converter needs."""
    rng, net = s.net.rng, s.net
    chosen = [name for name in s.made[:-1] if rng.random() < 0.4] + s.made[-1:]
    shaped = net.opset < 7 or rng.random() < 0.3
    for number, name in enumerate(chosen):
        output = net.node("Identity", name, outputs=[f"out_{number}"]) if rng.random() < 0.5 else name
        net.output(output, s.shapes[name] if shaped else None, net.floats)


def _options(rng: random.Random, s: Layers) -> dict[str, Any]:
    frames, batch, dtype = s.frames, s.batch, s.net.dtype
    options: dict[str, Any] = {"form": rng.choice(("auto", "auto", "scan", "loop", "unroll"))}
    if options["form"] == "auto" and rng.random() < 0.5:
        options["target"] = rng.choice(TARGETS)
    if rng.random() < 0.15:
        options["join"] = False
    if dtype in ("float16", "bfloat16") and rng.random() < (0.4 if dtype == "float16" else 0.8):
        options["compute"] = "float32"
    if rng.random() < 0.2:
        options["keep_rest"] = True
    sizes = {"T": rng.choice((1, 2, 4, 6)), "N": rng.choice((1, 2, 3))}
    fixed = [n for n, v in (("T", frames), ("N", batch)) if isinstance(v, str) and rng.random() < 0.4]
    if options["form"] == "unroll" and isinstance(frames, str):
        fixed.append("T")
    if fixed:
        options["dims"] = {name: sizes[name] for name in fixed}
    runs = [{"T": rng.choice((1, 2, 5, 12, 33)), "N": rng.choice((1, 2, 5))} for _ in range(2)]
    runs = [{**run, **options.get("dims", {})} for run in runs]
    padding = None if s.bare else rng.choice((None, "nan", "inf", "1e4"))
    return {
        "options": options,
        "runs": runs,
        "seed": rng.randrange(1000),
        "padding": padding,
        "scale": 1 if s.grows else rng.choice((1, 1, 1, 50)),
    }


def judge(case: Case) -> Outcome:
    """Compare the lowered model with the original, at several sizes."""
    try:
        whole = Running(case.model)
        first = whole(_feed(case, case.options["runs"][0], case.options["seed"]))
    except Exception as error:
        return Outcome("invalid", "the original does not run", str(error)[:500])
    options = dict(case.options["options"])
    lowered = attempt(lambda: rl.lower(case.model, options.pop("form"), **options))
    if isinstance(lowered, Outcome):
        return lowered
    try:
        running = Running(lowered, exactly=not _narrow(case.model) and options.get("target", "") in RUN)
    except Exception as error:
        return fault(f"the result is not loaded: {reason(str(error))}", str(error)[:500])
    compared = 0
    for number, sizes in enumerate(case.options["runs"]):
        feed = _feed(case, sizes, case.options["seed"] + number)
        expected = whole(feed) if number else first
        try:
            got = running(feed)
        except Exception as error:
            return fault("the result does not run", f"{sizes}: {str(error)[:400]}", compared)
        if [*got] != [*expected]:
            return fault("other outputs", f"{[*got]}, not {[*expected]}", compared)
        for name, array in expected.items():
            if text := difference(got[name], array, near=whole.near):
                if not steady(whole, feed):
                    return Outcome("invalid", "the original amplifies rounding", text)
                if not case.options["padding"] and within_range(case.model, feed) is not feed:
                    return Outcome("invalid", OVERFLOWS, text)
                return fault("other numbers", f"{sizes}, {name}: {text}", compared)
        compared += 1
    return agreed(compared)


def _narrow(model: onnx.ModelProto) -> bool:
    """Whether the floats are of a type that onnxruntime has few kernels for."""
    return any(v.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 for v in model.graph.input)


def _feed(case: Case, sizes: dict[str, int], seed: int) -> dict[str, Any]:
    feed = feeds(case.model, sizes, seed)
    x = next((name for name in ("x", "x_outer") if name in feed), "")
    if x:
        feed[x] = (feed[x] * np.array(case.options["scale"], feed[x].dtype)).astype(feed[x].dtype)
    if "lens" in feed and x:
        T = feed[x].shape[0]
        feed["lens"] = (feed["lens"] * 977 % (T + 1)).astype(np.int32)
        if case.options["padding"]:
            for row, length in enumerate(feed["lens"]):
                feed[x][length:, row] = float(case.options["padding"])
    return feed
