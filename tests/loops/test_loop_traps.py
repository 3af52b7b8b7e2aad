"""What is easily misread in a Loop or Scan: right in each form, or refused by name."""

import onnx
import pytest
from loop_models import as_meant, assert_same, fits, operators, run
from loop_traps import TRAPS, Trap

import rnn_lowering as rl


@pytest.mark.parametrize("form", ["unroll", "loop", "scan"])
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_a_trap(trap: Trap, form: str) -> None:
    model = trap.model
    if trap.refusal(form):
        with pytest.raises(rl.UnsupportedError, match=trap.refusal(form)) as caught:
            rl.lower(model, form, loops=True, **trap.fix)
        assert caught.value.node is not None
        assert caught.value.hint
        return
    for feed in trap.feeds:
        fixed = {n: a.shape for n, a in feed.items() if n not in trap.fix.get("set_inputs", {})}
        shapes = fixed if form == "unroll" else {}
        lowered = rl.lower(model, form, loops=True, **{"input_shapes": shapes, **trap.fix})
        onnx.checker.check_model(lowered, full_check=True)
        assert not operators(lowered) & ({"Loop", "Scan"} - {form.title()})
        assert fits(lowered, feed)
        assert_same(run(lowered, feed), run(as_meant(model), feed))
