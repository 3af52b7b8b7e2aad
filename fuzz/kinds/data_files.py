"""Files with and without data files, in every form and for each target: what is written loads in onnxruntime, also
in another folder and without the input, and computes the same."""

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from cases import Arrays
from running import session

import rnn_lowering as rl
from fuzz.case import Case, Outcome, fault, raised, reason
from fuzz.compare import differ, judged_pair, judged_stream, nearness
from fuzz.nets.loops import loops
from fuzz.nets.net import Net
from fuzz.nets.recurrent import Layers, layer
from fuzz.oracles import Running
from fuzz.sizes import feeds

CASES = 60
STEPS = (1, 3, 32, 33, 34, 40, 70)
FORMS = ("auto", "scan", "loop", "keep") + ("unroll",) * 5
TARGETS = ("tvm", "litert", "ncnn") * 3 + ("tract", "mnn", "openvino", "onnxruntime")
STORED = ("inline", "one", "one", "one", "each", "attributes", "inline, over 1 kB outside")
"""How the input has its tensors: in the model, in one data file or in one for each, also those of Constants."""

POLICIES = ("auto", "auto", "always", "always", "never", "weights.bin")


def generate(rng: random.Random) -> Case:
    """Make a net of fixed or open length, and how it is stored, lowered and written."""
    steps = rng.choice(STEPS)
    fixed = rng.random() < 0.5
    if rng.random() < 0.2:
        model = loops(rng, rng.choice((11, 13, 17)), "float32", steps if fixed else "T")[1]
    else:
        model = _layers(rng, steps, fixed)
    lowering: dict[str, Any] = {"to": rng.choice(FORMS), "lower_loops": rng.random() < 0.3}
    if rng.random() < 0.4:
        lowering = {"target": rng.choice(TARGETS)}
    if not fixed and rng.random() < 0.2:
        lowering = {"to": rng.choice(("auto", "scan", "unroll")), "stream": rng.choice(("T", "T=1"))}
    elif not fixed:
        lowering["dims"] = {"T": steps}
    writing = {"external_data": rng.choice(POLICIES), "verify": rng.choice((0, 0, 1))}
    name = rng.choice(("out.onnx",) * 8 + ("out.textproto", "out.json"))
    options: dict[str, Any] = {"lowering": lowering, "writing": writing, "name": name, "stored": rng.choice(STORED)}
    options |= {"threshold": rng.choice((0, 100, 1024)), "steps": steps, "seed": rng.randrange(1000)}
    return Case(model, options)


def _layers(rng: random.Random, steps: int, fixed: bool) -> onnx.ModelProto:
    """One or two recurrent layers, weights of some kilobytes, and what operators read when they are loaded."""
    dtype = rng.choice(("float32",) * 8 + ("float16", "float64"))
    net, frames = Net(rng, rng.choice((9, 11, 13, 14, 17, 18, 21)), dtype), steps if fixed else "T"
    s = Layers(net, [(net.floating("x", [frames, 2, 3]), 3)], 2, frames)
    for _ in range(rng.choice((1, 1, 2))):
        layer(s, plain=True)
    name, size = s.values[-1]
    if rng.random() < 0.5:
        name, size = net.node("MatMul", name, net.weights(size, 40)), 40
    if fixed and rng.random() < 0.5:  # sizes of a Split, one of each step
        rows = net.split(name, [1] * steps, 0)
        name = net.node("Concat", *reversed(rows), axis=0)
    if fixed and rng.random() < 0.4:  # a table of frames
        name = net.node("Gather", name, np.arange(steps)[::-1].copy(), axis=0)
    if fixed and rng.random() < 0.3:
        name = net.node("Where", np.arange(steps).reshape(-1, 1, 1) % 3 > 0, name, np.array(0.0))
    if rng.random() < 0.3:  # weights in integers, with a scale for each column
        table = np.random.default_rng(rng.randrange(99)).integers(-99, 99, (size, 70)).astype(np.int8)
        held = net.node("Cast", net.constant(table), to=net.kind)
        name = net.node("Mul", net.node("MatMul", name, held), net.numbers(70, scale=0.01))
    net.node("Identity", name, outputs=["y"])
    net.outputs_of("y")
    return net.whole()


def judge(case: Case) -> Outcome:
    """Write into a folder of its own, and look at what is there."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz_data_files_"))
    try:
        return _judged(case, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judged(case: Case, folder: Path) -> Outcome:
    options, source, work = case.options, folder / "from", folder / "to"
    for each in (source, work):
        each.mkdir()
    _store(case, source / "in.onnx")
    before = {path: path.read_bytes() for path in source.iterdir()}
    if Running(case.model, narrow=False).why:
        return Outcome("invalid", "onnxruntime refuses the original")
    path, again = work / options["name"], folder / "moved"
    refused: Outcome | None = None
    try:
        rl.lower_file(source / "in.onnx", path, **options["writing"], **options["lowering"])
    except rl.VerificationError as error:
        return fault(f"the comparison fails: {reason(str(error))}", str(error)[:1000])
    except Exception as error:
        refused = raised(error)
    if {each: each.read_bytes() for each in source.iterdir()} != before:
        return fault("the input is changed")
    if refused is not None:
        return fault("written though refused", refused.detail) if any(work.iterdir()) else refused
    if wrong := _unasked(options, work):
        return fault(wrong)
    shutil.rmtree(source)
    os.rename(work, again)
    return _compared(case, again / options["name"])


def _store(case: Case, path: Path) -> None:
    """Write the model as exporters do."""
    model, stored = onnx.ModelProto.FromString(case.model.SerializeToString()), case.options["stored"]
    if stored == "inline":
        onnx.save(model, path)
        return
    threshold = 1024 if stored.startswith("inline") else case.options["threshold"]
    more: dict[str, Any] = {"convert_attribute": stored == "attributes", "location": "in.data"}
    if stored == "each":
        more = {"all_tensors_to_one_file": False}
    onnx.save(model, path, save_as_external_data=True, size_threshold=threshold, **more)


def _unasked(options: dict[str, Any], work: Path) -> str:
    """Return what the folder has or lacks."""
    policy, others = options["writing"]["external_data"], {p.name for p in work.iterdir()} - {options["name"]}
    if not (work / options["name"]).exists():
        return "nothing is written"
    if len(others) > 1 or (policy == "never" and others):
        return "further files are written"
    if policy == "weights.bin" and others - {policy}:
        return "the data file has another name"
    return ""


def _compared(case: Case, path: Path) -> Outcome:
    """Compare the written model with the original, once read as a whole, once by onnxruntime from its path."""
    options = case.options
    try:
        written = onnx.load(path)
    except Exception as error:
        return fault("the result cannot be read", str(error)[:500])
    length = options["steps"]
    given = [_lengths(feeds(case.model, {"T": length, "N": 2}, options["seed"]), length)]
    if "stream" in options["lowering"]:
        found = judged_stream(case.model, written, given, [[1], [7, 2]])
        return _loads(path, Running(written, narrow=False), {}) or found
    found = judged_pair(case.model, written, given)
    if found.kind != "agreed":
        return found
    return _loads(path, Running(written, narrow=False), given[0]) or found


def _loads(path: Path, whole: Running, feed: Arrays) -> Outcome | None:
    """Return what is wrong if onnxruntime reads the file."""
    if whole.by != "onnxruntime" or path.suffix != ".onnx":
        return None
    for optimize in (False, True):
        try:
            held = session(path, optimize=optimize)
            names = {value.name for value in held.get_inputs()}
            got = held.run(None, {n: a for n, a in feed.items() if n in names}) if feed else []
        except Exception as error:
            return fault("onnxruntime does not load what is written", str(error)[:500])
        if feed and not optimize:
            text = differ(dict(zip(whole.names, got, strict=True)), whole(feed), nearness(whole.model))
            if text:
                return fault("other numbers from the file", text)
    return None


def _lengths(feed: Arrays, steps: int) -> Arrays:
    return {n: np.asarray(a % (steps + 1)) if a.dtype.kind in "iu" else a for n, a in feed.items()}
