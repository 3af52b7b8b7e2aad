"""The edit that keeps past rows: of any input of a node, of several, and with any rows before frame 0."""

import numpy as np
import onnx_ir as ir
from running import run
from texts import parse

from rnn_lowering.streaming.editor import Editor, input_of
from rnn_lowering.streaming.frames import Frames
from rnn_lowering.streaming.operators.windows import KeepRows
from rnn_lowering.streaming.sizes import StreamValues, time_inputs


def test_a_node_keeps_the_past_of_two_inputs() -> None:
    """As attention keeps keys and values: each call multiplies the last 3 rows of both, and adds them up."""
    model = ir.from_proto(
        parse("""g (float[2, time, 4] k, float[2, time, 4] v) => (float[2, 4] Y) {
        [last3] Y = Einsum <equation = "bsd,bsd->bd"> (k, v) }""")
    )
    (node,) = model.graph
    time = time_inputs(model, {"time": 1})
    editor = Editor(model, StreamValues.start(model, time.sizes()), time)
    before = np.full((2, 2, 4), 5, np.float32)
    KeepRows(node, input_of(node, 0), Frames(axis=1), slot=0, rows=2).apply(editor)
    KeepRows(node, input_of(node, 1), Frames(axis=1), slot=1, rows=2, initial=before, left=2).apply(editor)

    assert [state.shape for state in editor.states] == [(2, 2, 4), (2, 2, 4)]
    k, v = np.random.default_rng(0).standard_normal((2, 2, 6, 4)).astype(np.float32)
    states = {state.input: np.broadcast_to(np.float32(5 * n), (2, 2, 4)) for n, state in enumerate(editor.states)}
    keys, values = np.concatenate([0 * before, k], 1), np.concatenate([before, v], 1)
    for t in range(6):
        feed = {"k": k[:, t : t + 1], "v": v[:, t : t + 1]} | states
        outputs = run(ir.to_proto(model), feed)
        states = {state.input: outputs[state.output] for state in editor.states}
        expected = (keys[:, t : t + 3] * values[:, t : t + 3]).sum(1)
        np.testing.assert_allclose(outputs["Y"], expected, rtol=1e-5, atol=1e-6)
