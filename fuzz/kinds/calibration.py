"""Streams in integers, calibrated with odd data: what is written has the ratio that is claimed.

The ratio is measured again, by a host that knows the metadata only. A fault is also what is not finite, data that
are not finite and yet taken, and a poor ratio on plain data.
"""

import random
from collections.abc import Set
from typing import Any

import numpy as np
import onnx
from cases import Arrays

import rnn_lowering as rl
from fuzz.case import Case, Outcome, agreed, attempt, fault
from fuzz.driver import Host, Plan, plan_of
from fuzz.nets.calibrated import CHANNELS, net_of
from fuzz.oracles import feeds

CASES = 16
DATA = (
    *("plain",) * 6,
    *("inf", "nan", "zeros", "constant", "short", "short", "huge", "tiny", "channels", "spike", "silence", "none"),
)
APART = 0.5
"""By how many dB a claim may differ from what is measured."""

FINE = 70.0
"""From here on the rounding of float32 counts: nothing is said of the difference."""

LEAST = 10.0
"""The least ratio on plain data."""

RIGHTLY = ("leaves all nodes of the stream in float", "(max_frames)")
"""Why plain data are refused: there is nothing to quantize, or a sequence is longer than a table of the net."""

Ratios = dict[str, list[float]]
"""Of each output or state those that a claim may have."""


def generate(rng: random.Random) -> Case:
    """Make a net, the frames of a call, and what it is calibrated with."""
    model = net_of(rng)
    opset = model.opset_import[0].version
    options: dict[str, Any] = {"frames": rng.choice((1, 1, 2, 12)), "data": rng.choice(DATA)}
    options["bits"] = rng.choice(("w8a8", "w8a16")) if opset >= 21 else "w8a8"
    options["target"] = rng.choice(("portable",) * 4 + ("qnn",))
    longest = rng.choice((40, 90))
    if options["data"] == "short":
        longest = rng.choice((1, 2, 3, 5, 8))
    options["lengths"] = [longest] + [rng.randint(1, longest) for _ in range(rng.choice((0, 0, 1, 2)))]
    return Case(model, {**options, "seed": rng.randrange(1000)})


def judge(case: Case) -> Outcome:
    """Quantize the stream, and measure it."""
    options = case.options
    stepped = attempt(lambda: rl.lower(case.model, stream=f"time={options['frames']}", delay=True, max_frames=96))
    if isinstance(stepped, Outcome):
        return stepped
    given = sequences(options, plan_of(stepped), case.model)
    more = {name: options[name] for name in ("bits", "target")}
    made = attempt(lambda: rl.quantize_stream(stepped, given, **more))
    if isinstance(made, Outcome):
        rightly = options["data"] != "plain" or any(text in made.detail for text in RIGHTLY)
        return (
            made if rightly or made.kind != "refused" else fault(f"refused though plain: {made.what}", made.detail)
        )
    quantized, result = made
    if not all(np.isfinite(array).all() for sequence in given for array in sequence.values()):
        return fault("numbers that are not finite are taken", str(result))
    outputs = plan_of(stepped)["outputs"].keys()
    return _judged(case, outputs, result.snr, measured(stepped, quantized, given))


def _judged(case: Case, outputs: Set[str], claimed: dict[str, float], found: Ratios) -> Outcome:
    """Compare what is claimed of each output, and perhaps of states, with what was measured."""
    if not outputs <= claimed.keys() <= found.keys():
        return fault("other outputs are claimed", f"{[*claimed]}, not {[*outputs]}")
    for name, ratio in claimed.items():
        text = f"'{name}': {ratio:.1f} dB are claimed, {', '.join(f'{r:.1f}' for r in found[name])} measured"
        if np.isnan(ratio) or np.isnan(found[name]).all():
            return fault("what is not finite is written", text)
        apart = [min(ratio, FINE) - min(each, FINE) for each in found[name]]
        if not any(abs(each) <= APART for each in apart):
            return fault(f"the ratio is {'less than' if max(apart) > 0 else 'not'} the claimed one", text)
        if case.options["data"] == "plain" and ratio < LEAST:
            return fault("a poor ratio on plain data", text)
    return agreed(len(claimed))


def sequences(options: dict[str, Any], plan: Plan, model: onnx.ModelProto) -> list[Arrays]:
    """Return the sequences of a kind of data; inputs without frames are plain."""
    rng, kind = np.random.default_rng(options["seed"]), options["data"]
    found = [rng.uniform(-1, 1, (1, length, CHANNELS)) for length in options["lengths"]]
    last = found[-1]
    frame = rng.integers(last.shape[1])
    if kind in ("inf", "nan"):
        last[0, frame, rng.integers(CHANNELS)] = rng.choice((-1, 1)) * float(kind)
    elif kind in ("zeros", "constant"):
        found = [np.full_like(each, 0.0 if kind == "zeros" else 0.7) for each in found]
    elif kind in ("huge", "tiny"):
        found = [each * (1e6 if kind == "huge" else 1e-6) for each in found]
    elif kind == "channels":
        found = [each * 10.0 ** np.arange(-3, CHANNELS - 3) for each in found]
    elif kind == "spike":
        last[0, frame] *= 1e4
    elif kind == "silence":
        found = [np.where(np.arange(each.shape[1])[:, None] < each.shape[1] // 2, 0.0, each) for each in found]
    others = {n: a for n, a in feeds(model, {}, options["seed"]).items() if n in plan["inputs"] and n != "x"}
    return [] if kind == "none" else [{"x": each.astype(np.float32), **others} for each in found]


def measured(stepped: onnx.ModelProto, quantized: onnx.ModelProto, given: list[Arrays]) -> Ratios:
    """Return the ratio of each output and of each state, in dB: NaN where the result is not finite.

    A value of all frames is that behind the last one; if it is late, what it is after further zeros counts too.
    """
    first, second = Host(stepped), Host(quantized)
    call, outputs = first.call, first.plan["outputs"]
    found: Ratios = {}
    for name in (*outputs, *(state["output"] for state in first.plan["states"])):
        ratios = []
        for zeros in dict.fromkeys((None,) if outputs.get(name) is not None else (first.until(name), None)):
            exact, apart = [], []
            for sequence in given:
                frames = first.frames(sequence) // call * call
                whole = {n: a[:, :frames] if n == "x" else a for n, a in sequence.items()}
                if frames:
                    a, b = (_values(host, whole, zeros)[name].astype(np.float64) for host in (first, second))
                    exact.append(a.ravel())
                    apart.append((a - b).ravel())
            ratios.append(_ratio(np.concatenate(exact), np.concatenate(apart)))
        found[name] = ratios
    return found


def _values(host: Host, sequence: Arrays, zeros: int | None) -> Arrays:
    """Return the outputs of a sequence and the states behind it."""
    outputs, states = host(sequence, [host.call], zeros)
    return states | outputs


def _ratio(exact: Any, apart: Any) -> float:
    signal, noise = np.square(exact).sum(), np.square(apart).sum()
    if not exact.size or not np.isfinite(noise):
        return np.nan
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(signal / noise)) if noise else np.inf
