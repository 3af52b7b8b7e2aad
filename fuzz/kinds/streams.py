"""Nets as streams: chunks of a sequence against the whole in onnxruntime."""

import random
from typing import Any

import onnx
from cases import Arrays

import rnn_lowering as rl
from fuzz.case import Case, Outcome, agreed, attempt, fault, reason
from fuzz.compare import nearness
from fuzz.driver import Host
from fuzz.nets.causal import causal
from fuzz.nets.frames import NETS
from fuzz.nets.sequences import sequence
from fuzz.oracles import Running, are_no_rows, difference, feeds, steady

CASES = 80
LENGTHS = (7, 19, 50, 210, 310)
CHUNKS = ([1], [5], [3, 1, 4, 7, 2], [64, 3, 17], [1000])
FORMS = ("keep", "keep", "auto", "auto", "scan", "loop", "unroll")
TARGETS = ("portable",) * 6 + ("tvm", "ncnn", "openvino", "tract", "mnn", "opencv", "onnxruntime")


def generate(rng: random.Random) -> Case:
    """Make a net, and how it is streamed."""
    options: dict[str, Any] = {"delay": rng.random() < 0.75, "form": rng.choice(FORMS), "target": "portable"}
    if options["form"] == "auto":
        options["target"] = rng.choice(TARGETS)
    options |= {"frames": rng.choice((0, 0, 0, 1, 1, 3)), "chunks": rng.choice(CHUNKS), "seed": rng.randrange(1000)}
    if rng.random() < 0.4:
        return Case(rng.choice(NETS)(rng).whole(), {**options, "axis": ["time"], "lengths": _some(rng)})
    if rng.random() < 0.3:
        made = causal(rng)
        options |= {"max_frames": rng.choice((None, None, 12, 60)), "runs": 36}  # a table may have 40 rows
    else:
        made = sequence(rng)
    options |= {"axis": made.axis, "high": made.high, "lens": made.lengths, "verify": rng.random() < 0.08}
    return Case(made.model, {**options, "lengths": [made.frames] if made.frames else _some(rng)})


def _some(rng: random.Random) -> list[int]:
    return sorted(rng.sample(LENGTHS, 3))


def judge(case: Case) -> Outcome:
    """Compare the stream with the whole, at each length."""
    stepped = attempt(lambda: _stepped(case.model, case.options))
    if isinstance(stepped, Outcome):
        return stepped
    length = case.options.get("runs", 240) if ":" not in case.options["axis"][0] else case.options["lengths"][0]
    try:
        whole = Running(case.model)
        whole(_feed(case, length))
    except Exception as error:
        return Outcome("invalid", f"the original does not run: {reason(str(error))}", str(error)[:500])
    try:
        host = Host(stepped)
    except Exception as error:
        return fault(f"the stream is not loaded: {reason(str(error))}", str(error)[:500])
    compared = 0
    for length in case.options["lengths"]:
        found = _at_length(case, whole, host, length)
        if isinstance(found, str) and found:
            return fault("other numbers", f"T = {length}: {found}", compared)
        compared += found is not None
    if compared and (text := _after_the_end(case, host)):
        return fault("no end", text, compared)
    if not compared:
        return Outcome("invalid", "the original runs at no length")
    return _compared(case, stepped) if case.options.get("verify") else agreed(compared)


def _stepped(model: onnx.ModelProto, options: dict[str, Any]) -> onnx.ModelProto:
    """The stream; with frames in each call, that many of its least number."""
    form: Any = options["form"]
    more = {name: options.get(name) for name in ("delay", "target", "max_frames")}
    if not options["frames"]:
        return _lowered(model, form, stream=dict.fromkeys(options["axis"]), **more)
    unit = 1
    for _ in range(2):  # the least number is in the error
        try:
            frames = options["frames"] * unit
            return _lowered(model, form, stream=dict.fromkeys(options["axis"], frames), **more)
        except (rl.OptionError, rl.UnsupportedError) as error:
            words = str(error).split("multiple of ")
            if len(words) < 2 or not (number := words[1].split()[0].strip(";,.:")).isdigit():
                raise
            unit = int(number)
    return _lowered(model, form, stream=dict.fromkeys(options["axis"], options["frames"] * unit), **more)


def _lowered(model: onnx.ModelProto, form: Any, **options: Any) -> onnx.ModelProto:
    stepped: onnx.ModelProto = rl.lower(model, form, **options)
    return stepped


def _at_length(case: Case, whole: Running, host: Host, length: int) -> str | None:
    """Return what differs; None if the whole does not run at this length."""
    frames = -(-max(length, host.plan["shortest"]) // host.call) * host.call
    frames = frames if host.most is None else min(frames, host.most)
    if frames < host.plan["shortest"]:
        return None
    if frames != length and ":" in case.options["axis"][0]:
        return None
    feed = _feed(case, frames)
    try:
        expected = whole(host.flushed(feed))
        ended = whole(feed)
    except Exception:
        return None
    sizes = [host.call] if host.plan["frames"] else [host.call * size for size in case.options["chunks"]]
    try:
        got, states = host(feed, sizes)
    except Exception as error:  # onnxruntime has no common error
        return f"calls of {sizes}: {str(error)[:300]}"
    for name, array in got.items():
        if are_no_rows(array, expected[name]):
            continue
        text = difference(array, _wanted(host, name, expected, frames), near=whole.near)
        text = text or _behind(host, name, expected, ended, frames)
        if text:
            if not steady(whole, feed):
                return None
            return _unless_rounded(case, whole, host, length, f"calls of {sizes}, output {name}: {text}")
    if text := _of_states(host, feed, ended, got, sizes, whole.near):
        return _unless_rounded(case, whole, host, length, f"calls of {sizes}, {text}")
    return None if not got and not states else ""


def _after_the_end(case: Case, host: Host) -> str:
    """Return what is wrong if a stream goes on after its last frame."""
    if host.most is None:
        return ""
    sizes = [host.call] if host.plan["frames"] else [host.most or host.call, host.call]
    try:
        host(_feed(case, host.most + host.call), sizes)
    except Exception:  # onnxruntime has no common error
        return ""
    return f"a sequence has at most {host.plan['max_frames']} frames, but one of {host.most + host.call} runs"


def _unless_rounded(case: Case, whole: Running, host: Host, length: int, text: str) -> str | None:
    """Return what differs in float32, if a model computes in half precision: long sequences add up its rounding."""
    if not nearness(whole.model):
        return text
    return _at_length(case, whole.wide, Host(host.stepped, Running(host.stepped).wide), length)


def _of_states(host: Host, feed: Arrays, ended: Arrays, got: Arrays, sizes: list[int], near: str) -> str:
    """Return which state of the model itself is not that of the last frame, after the zeros that the metadata tell.

    Nothing is said where zeros behind the sequence change its last frames: a padding is within the net.
    """
    axes = host.plan["outputs"]
    if any(got[n].shape != ended[n].shape or difference(got[n], ended[n]) for n in got if axes[n] is not None):
        return ""
    for name in (state["output"] for state in host.plan["states"]):
        zeros = host.until(name)
        if name in ended and (host.frames(feed) + zeros) % host.call == 0:
            text = difference(host(feed, sizes, zeros)[1][name], ended[name], near=near)
            if text:
                return f"state {name}: {text}"
    return ""


def _feed(case: Case, frames: int) -> Arrays:
    """A sequence, whose rows have one frame at least: a stream keeps the first state of an empty one."""
    feed = feeds(
        case.model, {"time": frames, "T": frames, "batch": 2}, case.options["seed"], case.options.get("high")
    )
    lens = case.options.get("lens", "")
    if lens in feed:
        feed[lens] = (1 + feed[lens] * 977 % frames).astype(feed[lens].dtype)
    return feed


def _wanted(host: Host, name: str, expected: Arrays, frames: int) -> Any:
    if host.plan["outputs"][name] is None:
        return expected[name]
    return host.of_sequence(name, expected[name], frames)


def _behind(host: Host, name: str, expected: Arrays, ended: Arrays, frames: int) -> str:
    """Return what differs where zeros behind a sequence must not matter: before the delay."""
    axis = host.plan["outputs"][name]
    if axis is None:
        return ""
    wanted = host.of_sequence(name, expected[name], frames)
    if ended[name].shape[axis] != wanted.shape[axis]:
        return f"the whole has {ended[name].shape}, the stream {wanted.shape}"
    short, delay = host.plan["short"].get(name, 0), host.plan["delay"].get(name, 0)
    sure = range(min(max(ended[name].shape[axis] + short - delay, 0), wanted.shape[axis]))
    return difference(wanted.take(sure, axis), ended[name].take(sure, axis))


def _compared(case: Case, stepped: onnx.ModelProto) -> Outcome:
    """Return whether the comparison of the package accepts a right stream."""
    result = attempt(lambda: rl.verify_stream(case.model, stepped))
    if isinstance(result, Outcome):
        return (
            result if result.kind == "fault" else fault(f"a right stream is refused: {result.what}", result.detail)
        )
    if result.status not in ("verified", "not verified"):
        return fault(f"a right stream is {result.status}", str(result)[:800])
    return agreed(2)
