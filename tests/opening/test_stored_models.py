"""Each fixed axis of a stored model is opened to what is right at other sizes, or refused."""

import pytest
from stored_models import Entry, load, parameters

import rnn_lowering as rl

_MOST = 3_000_000
"""Bytes of the models that run here."""


@pytest.mark.exhaustive
@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("entry", parameters("runs"))
def test_a_fixed_axis_is_opened_or_refused(entry: Entry) -> None:
    model = load(entry)
    if model.ByteSize() > _MOST:
        pytest.skip("takes long")
    given = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis in range(len(dims)) if value.name not in given and len(dims) > 1 else ():
            if dims[axis].dim_value > 0:
                try:
                    new = rl.lower(model, "keep", open_dims={f"{value.name}:{axis}": "opened"})
                except rl.UnsupportedError:
                    continue
                found = rl.verify(model, new, runs=1)
                assert found.status == "verified", f"{value.name}:{axis}: {found}"
