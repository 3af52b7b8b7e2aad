"""The example pages in a headless Chromium: streams run frame by frame on WebGPU and in WebAssembly, as Python runs
whole sequences."""

import base64
import json
import re
import shutil
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from browsers import headless, headless_gpu, headless_webnn, page_once
from cases import Arrays
from paths import EXAMPLES
from running import assert_close
from stream_models import plan_of, whole

import rnn_lowering as rl
from clients.environments import environment
from clients.recipes import example, recipe
from clients.trials import FRAMES, nets
from rnn_lowering.cli.command import main

pytestmark = [pytest.mark.browser, pytest.mark.environments("onnxruntime-web")]

COMMANDS = {"WebGPU": headless_gpu, "WebAssembly": headless}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the pages, with the library beside them."""
    shutil.copytree(EXAMPLES / "browser", tmp_path / "page")
    (tmp_path / "page" / "node_modules").symlink_to(environment("onnxruntime-web") / "node_modules")
    return tmp_path / "page"


def recording(samples: npt.NDArray[Any]) -> bytes:
    """A WAV file of float32 or int16 samples at 8 kHz."""
    size = samples.itemsize
    kind = 3 if samples.dtype == np.float32 else 1
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, kind, 1, 8000, 8000 * size, size, 8 * size)
    head = struct.pack("<4sI4s", b"RIFF", 36 + samples.nbytes, b"WAVE")
    return head + form + struct.pack("<4sI", b"data", samples.nbytes) + samples.tobytes()


@pytest.mark.parametrize("device", COMMANDS)
def test_a_signal_is_cleaned_as_at_once(
    device: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import signals

    monkeypatch.delitem(sys.modules, "signals")
    model = EXAMPLES / "denoiser_forward.onnx"
    step = {"stream": "time=1", "dims": {"batch": 1}, "target": "onnxruntime-webgpu"}
    rl.lower_file(model, folder / "step.onnx", **step, verify=0)  # type: ignore[arg-type]
    noisy = signals.noisy_signals(np.random.default_rng(7), 1, 0.5, (0.0, 0.0))[1]
    (folder / "noisy.wav").write_bytes(recording(noisy))
    command = COMMANDS[device](tmp_path / "profile")
    shown = page_once(folder, "index.html?recording=noisy.wav", r'id="said">(\d+ frames|failed)', command)
    assert re.search(rf"33 frames on {device}, \d+ microseconds each", shown), shown[-600:]
    found = re.search(r'id="cleaned"[^>]* src="data:audio/wav;base64,([^"]+)"', shown)
    assert found
    cleaned = np.frombuffer(base64.b64decode(found[1])[44:], np.float32)
    spectra = signals.to_spectra(noisy)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    mask = np.asarray(session.run(["mask"], {"magnitude": np.abs(spectra)})[0])
    expected = signals.to_signals(spectra * mask, noisy.shape[1])[0]
    np.testing.assert_allclose(cleaned, expected, rtol=0, atol=1e-5)


def test_a_missing_model_is_told(folder: Path, tmp_path: Path) -> None:
    page_once(folder, "index.html", 'id="said">failed: step.onnx: ', headless(tmp_path / "profile"))


PAGE = """<!doctype html><p id="said">Loading</p>
<script type="module">
  import { loadStream } from "./stream.mjs";

  async function frames(stream, given) {
    const found = [];
    for (const frame of given) {
      for (const input of Object.values(frame)) input[0] = Float32Array.from(input[0]);
      const outputs = Object.entries(await stream.next(frame));
      found.push(Object.fromEntries(outputs.map(([name, numbers]) => [name, Array.from(numbers)])));
    }
    return found;
  }

  const said = {};
  for (const [name, given] of Object.entries(await (await fetch("frames.json")).json())) {
    const stream = await loadStream(`${name}.onnx`);
    said[name] = { device: stream.device, first: await frames(stream, given) };
    stream.reset();
    said[name].second = await frames(stream, given);
  }
  document.getElementById("said").textContent = JSON.stringify(said);
</script>
"""


@pytest.mark.parametrize("device", COMMANDS)
def test_streams_give_what_whole_sequences_give(device: str, folder: Path, tmp_path: Path) -> None:
    """On WebGPU, runs replay a captured graph; a second sequence, after a reset, gives the same."""
    (folder / "streams.html").write_text(PAGE)
    expected: dict[str, Arrays] = {}
    plans, given = {}, {}
    for title, (model, feed, time) in nets().items():
        name = title.replace(" ", "_")
        names = {dim.dim_param for dim in model.graph.input[0].type.tensor_type.shape.dim} - {time, ""}
        step = rl.lower(model, target="onnxruntime-webgpu", stream={time: 1}, dims=dict.fromkeys(names, 1))
        (folder / f"{name}.onnx").write_bytes(step.SerializeToString())
        plans[name], expected[name] = plan_of(step), whole(model, feed)
        axes = plans[name]["inputs"].items()
        parts = [
            {n: feed[n] if axis is None else feed[n].take([t], axis) for n, axis in axes} for t in range(FRAMES)
        ]
        given[name] = [{n: (part.ravel().tolist(), part.shape) for n, part in frame.items()} for frame in parts]
    assert any(state["state"] == "t" for plan in plans.values() for state in plan["states"])
    (folder / "frames.json").write_text(json.dumps(given))
    shown = page_once(folder, "streams.html", r'id="said">\{', COMMANDS[device](tmp_path / "profile"), seconds=100)
    found = re.search(r'id="said">(\{.*?)</p>', shown)
    assert found
    for name, said in json.loads(found[1]).items():
        assert said["device"] == device
        for output, axis in plans[name]["outputs"].items():
            want = expected[name][output]
            for frames in (said["first"], said["second"]):
                shape = want.shape if axis is None else (*want.shape[:axis], 1, *want.shape[axis + 1 :])
                arrays = [np.reshape(frame[output], shape) for frame in frames]
                got = arrays[-1] if axis is None else np.concatenate(arrays, axis)
                np.testing.assert_allclose(got, want, rtol=0, atol=1e-5, err_msg=f"{name} {output}")


RECIPE = """<!doctype html><p id="said">Loading</p>
<script type="importmap">
  {{"imports": {{"onnxruntime-web/webgpu": "./node_modules/onnxruntime-web/dist/ort.webgpu.bundle.min.mjs"}}}}
</script>
<script type="module">
  const X = new Float32Array((await (await fetch("X.npy")).arrayBuffer()).slice(-4 * 16 * 80));
  {code}
  document.getElementById("said").textContent = `[${{Y.data.join(", ")}}]`;
</script>
"""
"""The JavaScript of the recipe, which has X and gives Y; imports may stand anywhere in a module."""


OF_CLIENTS: dict[str, Callable[[Path], list[str]]] = {
    "onnxruntime-webgpu": headless_gpu,
    "webnn": partial(headless_webnn, environment("webnn")),
}


@pytest.mark.parametrize("client", OF_CLIENTS)
def test_the_recipe_gives_what_the_original_gives(
    client: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = example(folder)
    lowering, _, code = recipe(client)
    monkeypatch.chdir(folder)
    assert main(lowering) == 0
    (folder / "recipe.html").write_text(RECIPE.format(code=code))
    shown = page_once(folder, "recipe.html", r'id="said">\[', OF_CLIENTS[client](tmp_path / "profile"))
    found = re.search(r'id="said">(\[.*?\])', shown)
    assert found
    assert_close({"Y": np.reshape(json.loads(found[1]), (16, 1, 80)).astype(np.float32)}, expected)


@pytest.fixture
def spotter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of whistles; the step of the spotter and a recording are in the folder."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import whistles

    for name in ("whistles", "signals"):
        monkeypatch.delitem(sys.modules, name)
    step = {"stream": "time=1", "dims": {"batch": 1}, "target": "onnxruntime-webgpu"}
    rl.lower_file(EXAMPLES / "whistles.onnx", folder / "whistles.onnx", **step, verify=0)  # type: ignore[arg-type]
    return whistles


@pytest.mark.parametrize("device", COMMANDS)
def test_whistles_are_heard_as_at_once(device: str, spotter: Any, folder: Path, tmp_path: Path) -> None:
    import signals

    samples, labels = spotter.recordings(np.random.default_rng(8), 1, 3.0)
    (folder / "whistles.wav").write_bytes(recording(samples))
    model = EXAMPLES / "whistles.onnx"
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    spectra = signals.to_spectra(samples)
    expected = np.asarray(session.run(["probability"], {"magnitude": np.abs(spectra)})[0])[0]
    wanted = spotter.heard(expected)
    assert len(wanted) > 1
    assert {name for name, _ in wanted} == {spotter.NAMES[word] for word in set(labels.ravel()) if word > 0}
    shown = page_once(
        folder,
        "whistles.html?recording=whistles.wav",
        r'id="said">(\d+ frames|failed)',
        COMMANDS[device](tmp_path / "profile"),
    )
    frames = re.search(rf"(\d+) frames heard on {device}\.", shown)
    assert frames, shown[-600:]
    count = int(frames[1])
    assert count == samples.shape[1] // signals.HOP  # the last ones, partly of silence, are not waited for
    assert re.findall(r"<li>(.*?)</li>", shown) == [
        f"{name} after {frame * signals.HOP / signals.RATE:.2f} s" for name, frame in wanted if frame < count
    ]
    for name, points in re.findall(r'<polyline id="(\w+)"[^>]* points="([^"]*)"', shown):
        drawn = [1 - float(point.split(",")[1]) / 100 for point in points.split()]
        np.testing.assert_allclose(drawn, expected[:count, spotter.NAMES.index(name)], rtol=0, atol=1e-3)


def test_whistles_are_heard_from_the_microphone(spotter: Any, folder: Path, tmp_path: Path) -> None:
    """Chromium plays a file again and again as its microphone."""
    samples, _ = spotter.recordings(np.random.default_rng(8), 1, 3.0)
    (tmp_path / "whistles.wav").write_bytes(recording((samples * 32767).astype(np.int16)))
    microphone = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    command = [*headless(tmp_path / "profile"), *microphone, "--autoplay-policy=no-user-gesture-required"]
    command.append(f"--use-file-for-fake-audio-capture={tmp_path / 'whistles.wav'}")
    page_once(folder, "whistles.html?recording=microphone", r"<li>(rise|fall|twice) after", command)
