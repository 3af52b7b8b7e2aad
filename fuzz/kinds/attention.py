"""Nets of linear attention, lowered in each form and for each target, and as streams."""

import random
from typing import Any

import rnn_lowering as rl
from fuzz.case import Case, Outcome, attempt
from fuzz.compare import judged_pair, judged_stream
from fuzz.nets.attention import LENGTHS, feeds, net_of

CASES = 60
FORMS = ("auto", "auto", "scan", "loop", "unroll", "chunked", "chunked")
TARGETS = (
    "portable",
    "portable",
    "onnxruntime",
    "onnxruntime-web",
    "tvm",
    "tract",
    "openvino",
    "mnn",
    "iree",
    "opencv",
)
CHUNKS = ([1], [5], [3, 1, 17, 2], [40, 1])


def generate(rng: random.Random) -> Case:
    """Make a net, with a form or as a stream."""
    seed = rng.randrange(2**31)
    net = net_of(seed)
    lengths = [net.length] if net.T != "T" else rng.sample(LENGTHS, 3)
    stream = rng.choice(("", "", "x:1", "x:1=1", "x:1=7"))
    lowering: dict[str, Any] = {"to": rng.choice(FORMS)}
    if rng.random() < 0.5:
        lowering = {"target": rng.choice(TARGETS)}
    if rng.random() < 0.2 and net.standard:
        lowering["keep_rest"] = True
    if stream:
        lowering["stream"] = stream
        size = int(stream.partition("=")[2] or 1)
        lengths = [max(size, length // size * size) for length in lengths] if net.T == "T" else lengths
    elif net.T == "T" and rng.random() < 0.4:
        lengths = lengths[:1]
        lowering["dims"] = {"T": lengths[0]}
    return Case(net.model(), {"lowering": lowering, "lengths": lengths, "seed": seed, "batch": net.batch})


def judge(case: Case) -> Outcome:
    """Compare with onnxruntime's kernels, or float64 where it has none."""
    options = case.options
    given = feeds(case.model, options["lengths"], options["seed"], options["batch"])
    lowered = attempt(lambda: rl.lower(case.model, **options["lowering"]))
    if isinstance(lowered, Outcome):
        return lowered
    if "stream" in options["lowering"]:
        return judged_stream(case.model, lowered, given, CHUNKS)
    return judged_pair(case.model, lowered, given)
