"""The example in TVM on real models, and the recipes of docs/runtimes.md, each in its client's environment."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Case
from chains import Link, chain
from onnx import TensorProto, helper
from paths import EXAMPLES, MODELS
from running import OF_RUNTIMES, assert_close, recurrent_left, run

from clients.driving import LENT, Job, drive, run_python
from clients.environments import CLIENTS, HERE, environment, of_npm
from clients.recipes import RECIPES, example, recipe, run_commands
from clients.trials import original
from rnn_lowering.cli.command import main

ROOT = HERE.parents[1]
SHOWN = {
    "github/snakers4__silero-vad/silero_vad_16k_op15.onnx": [
        "--set-shape=input:1,576",
        "--set-shape=state:2,1,128",
    ],
    "github/breizhn__DTLN/model_1.onnx": [],
    "github/Xiaobin-Rong__gtcrn/gtcrn_simple_v4.onnx": [],  # NaN with the whole of fast-math
    "exported/nets/nsnet2_op12.onnx": ["--set-dim=b=1", "--set-dim=t=5"],
    "exported/nets/crnn_ocr_op11.onnx": ["--set-dim=batch=1", "--set-dim=width=64"],
}


def run_in_tvm(*arguments: str | Path) -> str:
    """Run the example in TVM's environment, to which this project and what it needs are lent."""
    return run_python("tvm", ROOT / "examples" / "run_in_tvm.py", *arguments, "--runs=3", lent=LENT)


@pytest.mark.environments("tvm")
@pytest.mark.skipif(not MODELS.exists(), reason=f"{MODELS.name} is not there")
@pytest.mark.parametrize("file", SHOWN)
def test_real_models_run_in_tvm(file: str) -> None:
    found = re.search(r"largest difference (\S+)", run_in_tvm(MODELS / file, *SHOWN[file]))
    assert found
    assert float(found[1]) < 1e-5


@pytest.mark.environments("pytorch")
def test_a_net_of_pytorch_is_taken_to_a_runtime(tmp_path: Path) -> None:
    """The result computes what PyTorch does."""
    path = tmp_path / "net.onnx"
    script = ROOT / "examples" / "your_net.py"
    printed = run_python("pytorch", script, path, "--target", "tract", lent=LENT, cwd=tmp_path)
    assert recurrent_left(onnx.load(path)) == []
    assert float(printed.split("largest difference to PyTorch ")[1]) < 1e-5


@pytest.mark.environments("tvm")
def test_inputs_can_be_given_and_differences_are_noticed(tmp_path: Path) -> None:
    """The denoiser of this repository, by numbers of its own; a tolerance of -1 is always exceeded."""
    np.savez(tmp_path / "feed.npz", magnitude=np.ones((1, 4, 129), np.float32))
    arguments: list[str | Path] = [ROOT / "examples" / "denoiser.onnx", f"--test-input={tmp_path / 'feed.npz'}"]
    arguments.append("--set-shape=magnitude:1,4,129")
    run_in_tvm(*arguments)
    with pytest.raises(AssertionError, match="that is more than -1"):
        run_in_tvm(*arguments, "--atol=-1")


IN_NODE = """import {{ readFileSync, writeFileSync }} from "node:fs";
const numbers = readFileSync("X.npy").subarray(-4 * 16 * 80);
const X = new Float32Array(Uint8Array.from(numbers).buffer);
{code}
writeFileSync("Y.raw", Y.data);
"""
"""The JavaScript of a recipe, which has X and gives Y."""


@pytest.mark.parametrize("client", [name for name, of in CLIENTS.items() if not of.in_browser])
def test_recipes_give_what_the_original_gives(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = example(tmp_path)
    lowering, commands, code = recipe(client)
    monkeypatch.chdir(tmp_path)
    assert main(lowering) == 0
    last = "python recipe.py"
    if of_npm(client):
        (tmp_path / "recipe.mjs").write_text(IN_NODE.format(code=code))
        (tmp_path / "node_modules").symlink_to(environment(client) / "node_modules")
        last = "node recipe.mjs && python recipe.py"
        code = "import numpy as np\nY = np.fromfile('Y.raw', np.float32).reshape(16, 1, 80)"
    (tmp_path / "recipe.py").write_text(f"{code}\nnp.save('Y.npy', Y)\n" if code else "")
    printed = run_commands(client, [*commands, last], tmp_path, DEV="PYTHON")
    precision = CLIENTS[client].precision
    assert_close({"Y": np.load(tmp_path / "Y.npy")}, expected, precision, tolerances=OF_RUNTIMES)
    said = RECIPES.read_text(encoding="utf-8").partition("Each prints\n`(16, 1, 80)`")[2]
    shown = re.findall(r"-?\d\.\d+", said)[:3]
    numbers = re.findall(r"-?\d+\.\d+", re.split(r"16, 1, 80", printed)[1])[:3]
    np.testing.assert_allclose(
        [float(each) for each in numbers],
        [float(each) for each in shown],
        atol=6e-4 if precision == "float32" else 5e-3,
    )


def measured_messages() -> list[tuple[str, str]]:
    """Each client and the message that docs/troubleshooting.md says it gives, where that is measured."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    clients = {row.recipe: client for client, row in CLIENTS.items()}
    found = re.findall(r"^## `(.*)`\n\n(\w+), \*measured\*", text, re.MULTILINE)
    return [(clients[name], message) for message, name in found if name in clients]


REFUSED: dict[str, dict[str, Any]] = {
    "Non constant seq_len is not supported": {"optional": ("B", "sequence_lens")},
    "Clashing resolution for expression": {"N": 2},
    "Model wasn't fully converted": {
        "attributes": {"layout": 1, "direction": "bidirectional"},
        "optional": ("B", "initial_h", "initial_c"),
    },
    "failed to legalize operation 'torch.operator' that was explicitly marked illegal": {
        "attributes": {"direction": "reverse"}
    },
}
"""A message -> what of an LSTM causes it, where not every LSTM does."""


NAMED = "Impossible to unify Sym("
"""The message about a value inside of a model that is declared with names of sizes."""


def refused(message: str) -> Job:
    """A model of one LSTM that causes a message, and its inputs."""
    fields: dict[str, Any] = {"T": 4, "N": 1, "I": 3, "x": "symbolic" if message == NAMED else "static"}
    model, feed = original(Case("message", "LSTM", **fields | REFUSED.get(message, {})))
    if message == NAMED:
        (node,) = model.graph.node
        output, node.output[0] = node.output[0], "inner"
        model.graph.node.append(helper.make_node("Neg", ["inner"], [output]))
        inner = helper.make_tensor_value_info("inner", TensorProto.FLOAT, ["seq", 1, "batch", 4])
        model.graph.value_info.append(inner)
    return model, feed


@pytest.mark.parametrize(("client", "message"), measured_messages(), ids=[c for c, _ in measured_messages()])
def test_messages_are_those_of_the_clients(client: str, message: str, tmp_path: Path) -> None:
    outcome = drive(client, {"model": refused(message)}, tmp_path)["model"]
    assert isinstance(outcome, str)
    assert message in outcome


NET = """
import numpy as np

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(12, 5, batch_first=True)

    def forward(self, X):
        return self.gru(self.lstm(X)[0])

torch.manual_seed(0)
net, X = Net().eval(), torch.randn(2, 7, 8)
"""
SAVE = """
Y, h = net(X)
exported = torch.onnx.export(net, (X,), dynamo=True).model.graph
assert {"LSTM", "GRU"} <= {node.op_type for node in exported}
np.savez("outputs.npz", X=X.numpy(), Y=Y.detach().numpy(), h=h.detach().numpy())
"""


@pytest.mark.environments("pytorch")
def test_the_recipe_for_pytorch(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", RECIPES.read_text().split("\n## PyTorch\n")[1], re.DOTALL)[0]
    imports, _, rest = code.partition("\n")
    (tmp_path / "recipe.py").write_text(f"{imports}\n{NET}{rest}{SAVE}")
    run_python("pytorch", "recipe.py", lent=LENT, cwd=tmp_path)
    lowered = onnx.load(tmp_path / "from_pytorch.onnx")
    assert recurrent_left(lowered) == []
    with np.load(tmp_path / "outputs.npz") as held:
        feed = {lowered.graph.input[0].name: held["X"]}
        results = run(lowered, feed).values()
        assert_close(dict(zip("Yh", results, strict=True)), {"Y": held["Y"], "h": held["h"]})


@pytest.mark.environments("olive", "pytorch")
def test_the_recipe_for_olive(tmp_path: Path) -> None:
    """A run of Olive, as in the document; its caches stay in the folder."""
    section = RECIPES.read_text(encoding="utf-8").split("\n## Olive\n")[1]
    (tmp_path / "recipe.py").write_text(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0])
    given = chain(Link("LSTM", "lstm", {"direction": "bidirectional"}), Link("GRU", "gru"))
    onnx.save(given, tmp_path / "model.onnx")
    (torch,) = environment("pytorch").glob("lib/python*/site-packages")
    run_python(
        "olive", "recipe.py", lent=[*LENT, torch], cwd=tmp_path, HOME=str(tmp_path), OLIVE_DISABLE_TELEMETRY="1"
    )
    lowered = onnx.load(tmp_path / "by_olive" / "model.onnx")
    assert recurrent_left(lowered) == []
    X = np.random.default_rng(0).standard_normal((16, 1, 3)).astype(np.float32)
    assert_close(run(lowered, {"X": X}), run(given, {"X": X}))


NET_OF_KERAS = """
import tensorflow as tf
X = tf.keras.Input((None, 8))
net = tf.keras.Model(X, tf.keras.layers.LSTM(6, return_sequences=True)(X))
"""


@pytest.mark.parametrize(
    ("exporter", "before", "nodes", "open_axis", "size", "length_name"),
    [("pytorch", "", 2, 0, 80, "seq"), ("keras", NET_OF_KERAS, 1, 1, 8, None), ("paddle", "", 1, 1, 8, None)],
)
def test_getting_started(
    exporter: str, before: str, nodes: int, open_axis: int, size: int, length_name: str | None, tmp_path: Path
) -> None:
    """Its lines as they are, in an environment of the exporter, and sequences of several lengths."""
    text = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    section = re.split(rf"\n## From {exporter}\n", text, flags=re.IGNORECASE)[1]
    blocks = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    (tmp_path / "typed.py").write_text(before + "\n".join(blocks))
    (own,) = environment(exporter).glob("lib/python*/site-packages")
    run_python(exporter, "typed.py", lent=[own, *LENT], cwd=tmp_path)
    of = {"pytorch": ("pytorch.onnx", "pytorch_lowered.onnx")}
    files = of.get(exporter, (f"{exporter}.onnx", f"{exporter}_lowered.onnx"))
    original, lowered = (onnx.load(tmp_path / file) for file in files)
    assert len(recurrent_left(original)) == nodes
    assert recurrent_left(lowered) == []
    (given,) = lowered.graph.input
    length_dim = given.type.tensor_type.shape.dim[open_axis]
    assert not length_dim.HasField("dim_value")
    assert length_name is None or length_dim.dim_param == length_name
    for length in (1, 5, 20):
        shape = (length, 1, size) if open_axis == 0 else (1, length, size)
        feed = {given.name: np.ones(shape, np.float32)}
        assert_close(run(lowered, feed), run(original, feed))
    if exporter == "pytorch":  # it is the example, but for the weights; the first block ran in the newer exporter
        newer, of_newer = (onnx.load(tmp_path / f"{name}.onnx") for name in ("exported", "exported_lowered"))
        assert len(recurrent_left(newer)) == 2
        assert recurrent_left(of_newer) == []
        feed = {"X": np.ones((16, 1, size), np.float32)}  # torch 2.13 keeps no other length
        assert_close(run(of_newer, feed), run(newer, feed))
        kept = onnx.load(EXAMPLES / "model.onnx")
        assert [(n.op_type, n.input) for n in original.graph.node] == [
            (n.op_type, n.input) for n in kept.graph.node
        ]
        assert (original.graph.input, original.graph.output) == (kept.graph.input, kept.graph.output)
