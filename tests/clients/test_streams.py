"""A stream of one frame in runtimes that hold no loop, driven by nothing but the metadata."""

import os
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import onnx
import pytest
from cases import Arrays, Case
from oracle import GATES
from paths import MODELS
from stream_models import CHUNKINGS, chunked, net, plan_of, random, recurrent, streamed, whole
from stream_nets import enhancer, keyword_spotter

import rnn_lowering as rl
from clients.driving import drive
from clients.environments import HERE, python, why_absent
from clients.trials import original
from rnn_lowering.cli.command import main

FRAMES = 3


def nets() -> dict[str, tuple[onnx.ModelProto, Arrays, str]]:
    """Models with a whole sequence of the length above, and the name of their time."""
    spotter, heard = keyword_spotter()
    found = {"keyword spotter": (spotter, {"features": heard["features"][:1, :, :FRAMES]}, "time")}
    spectra = enhancer()
    found["speech enhancement"] = (spectra[0], {"spectra": spectra[1]["spectra"][:1, :, :FRAMES]}, "time")
    for name, width, file in (("logspec", 161, "nsnet2_op12"), ("feat", 42, "rnnoise_op15")):
        path = MODELS / "exported" / "nets" / f"{file}.onnx"
        if path.exists():
            found[file] = (onnx.load(path), {name: random((1, FRAMES, width), 8)}, "t")
    for op in GATES:  # the last state is an output of the model already
        model, feed = original(Case("returned", op, T=FRAMES, N=1, x="length", outputs=("Y", "Y_h")))
        found[f"{op} returned"] = (model, feed, "seq")
    return found | from_the_start()


def from_the_start() -> dict[str, tuple[onnx.ModelProto, Arrays, str]]:
    """Nets whose first call differs: the first frame repeated, and an initial state that a side input gives."""
    numbers = {f"i{n}": np.array([n]) for n in (0, 1, 2)} | {"minus1": np.array([-1])}
    repeated = net(
        """g (float[1, 3, time] X) => (float[a, b, c] Y) { f = Slice (X, i0, i1, i2)
            e = Slice (X, i0, minus1, i2)  p = Concat <axis = 2> (f, e)  Y = Sub (X, p) }""",
        numbers,
    )
    given = net(
        """g (float[1, 3, time] X, float[1, 5] S) => (float[a, b, c] Y) {
            m = MatMul (S, P)  t = Tanh (m)  h = Unsqueeze (t, i0)  x = Transpose <perm = [2, 0, 1]> (X)
            y = GRU <hidden_size = 4> (x, W, R, B, , h)  s = Squeeze (y, i1)
            Y = Transpose <perm = [1, 2, 0]> (s) }""",
        {**recurrent("GRU", 3, 4), "P": random((5, 4), 3), "i0": numbers["i0"], "i1": numbers["i1"]},
    )
    X = random((1, 3, FRAMES), 1)
    return {
        "first frame repeated": (repeated, {"X": X}, "time"),
        "computed initial state": (given, {"X": X, "S": random((1, 5), 2)}, "time"),
    }


LEFT = {
    "ncnn": {  # ncnn does not load what pnnx makes of the first; it has no Where
        *("speech enhancement", "first frame repeated", "computed initial state"),
    },
    "tvm": set[str](),
    "tract": set[str](),
    "opencv": set[str](),
    "mnn": set[str](),
    "openvino": set[str](),
    "onnxruntime-web": set[str](),
}


@pytest.mark.parametrize("client", LEFT)
def test_states_are_fed_back(client: str, tmp_path: Path) -> None:
    if reason := why_absent(client):
        pytest.skip(reason)
    models = {name: net for name, net in nets().items() if name not in LEFT[client]}
    steps: dict[str, onnx.ModelProto] = {}
    for name, (model, _, time) in models.items():
        names = {dim.dim_param for dim in model.graph.input[0].type.tensor_type.shape.dim} - {time, ""}
        steps[name] = rl.lower(model, target=client, stream={time: 1}, dims=dict.fromkeys(names, 1))
    plans = {name: plan_of(step) for name, step in steps.items()}
    states = {
        name: {s["input"]: np.zeros(s["shape"], s["dtype"]) for s in plan["states"]} for name, plan in plans.items()
    }
    frames: dict[str, list[Arrays]] = {name: [] for name in models}
    for t in range(FRAMES):
        jobs = {}
        for name, (_, feed, _) in models.items():
            given = {
                n: feed[n] if axis is None else feed[n].take([t], axis) for n, axis in plans[name]["inputs"].items()
            }
            jobs[name] = (steps[name], {**given, **states[name]})
        for name, results in drive(client, jobs, tmp_path / str(t)).items():
            assert not isinstance(results, str), f"{name}: {results}"
            states[name] = {
                s["input"]: results[s["output"]].reshape(s["shape"]).astype(s["dtype"])
                for s in plans[name]["states"]
            }
            frames[name].append({n: results[n] for n in plans[name]["outputs"]})
    for name, (model, feed, _) in models.items():
        expected = whole(model, feed)
        for output, axis in plans[name]["outputs"].items():
            parts = [part[output] for part in frames[name]]
            got = parts[-1] if axis is None else np.concatenate(parts, axis)
            np.testing.assert_allclose(got, expected[output], rtol=0, atol=1e-5, err_msg=f"{name} {output}")


DOCUMENT = HERE.parents[1] / "docs" / "streaming.md"


@pytest.mark.parametrize("client", ["tvm", "ncnn"])
def test_the_recipes(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands and lines of docs/streaming.md as they are, on the model that all pages use."""
    if reason := why_absent(client):
        pytest.skip(reason)
    text, code = DOCUMENT.read_text(encoding="utf-8").split(f"<!-- {client} -->\n```python\n")
    lowering, *commands = [line[4:] for line in text.split("```")[-1].splitlines() if line.startswith("    ")]
    model = onnx.load(HERE.parents[1] / "examples" / "model.onnx")
    onnx.save(model, tmp_path / "model.onnx")
    sequence = random((FRAMES, 1, 80), 8)
    np.save(tmp_path / "X.npy", sequence)
    monkeypatch.chdir(tmp_path)
    assert main(lowering.split()[1:]) == 0
    typed = (
        f"import numpy as np\nsequence = np.load('X.npy')\n{code.split('```')[0]}np.save('Y.npy', outputs['Y'])\n"
    )
    (tmp_path / "recipe.py").write_text(typed)
    programs = [python(client).parent, *python(client).parents[1].glob("lib/python*/site-packages/pnnx")]
    path = os.pathsep.join([*map(str, reversed(programs)), os.environ["PATH"]])
    lent = {"PYTHONPATH": str(Path(onnx.__file__).parents[1]), "PATH": path}
    for command in [*commands, "python recipe.py"]:
        subprocess.run(command, shell=True, check=True, env={**os.environ, **lent})
    np.testing.assert_allclose(np.load("Y.npy"), whole(model, {"X": sequence})["Y"][-1:], rtol=0, atol=1e-5)


def test_a_net_of_pytorch_in_chunks(tmp_path: Path) -> None:
    """As PyTorch exports it; the truth is what PyTorch computes of whole sequences."""
    if reason := why_absent("pytorch"):
        pytest.skip(reason)
    subprocess.run(
        [python("pytorch"), HERE / "drivers" / "export_enhancer.py", tmp_path],
        env={**os.environ, "PYTHONPATH": sysconfig.get_path("purelib"), "OMP_NUM_THREADS": "1"},
        check=True,
    )
    with np.load(tmp_path / "expected.npz") as held:
        expected = dict(held)
    model = onnx.load(tmp_path / "enhancer.onnx")
    for to in ("keep", "auto"):
        stepped = streamed(model, "time", to)
        assert [s["state"] for s in plan_of(stepped)["states"]] == ["h", "x", "x", "x"]
        for sizes in CHUNKINGS:
            got = chunked(stepped, {"spectra": expected["spectra"]}, sizes)["enhanced"]
            np.testing.assert_allclose(got, expected["enhanced"], rtol=0, atol=1e-5, err_msg=f"{to} {sizes}")
