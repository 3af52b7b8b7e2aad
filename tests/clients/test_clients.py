"""What the clients do with recurrent nodes and without; see outcomes.json for what they did when last looked at."""

import pytest
from paths import MODELS

from clients import table
from clients.driving import OUTCOMES
from clients.environments import CLIENTS, HERE, of_npm, pin, version, why_absent
from clients.measuring import Outcomes, beside_oracle, real, small, stored
from clients.trials import REAL, activations, names, saturated

PYPROJECT = HERE.parents[1] / "pyproject.toml"
REFUSALS = {"tinygrad": "is not supported", "tvm": "not supported for frontend ONNX"}
"""What those say of an operator that reject every model: nothing else may be their reason."""

needs_models = pytest.mark.skipif(not MODELS.exists(), reason=f"{MODELS.name} is not there")


def skip_if_absent(client: str) -> None:
    if reason := why_absent(client):
        pytest.skip(reason)


def check(measured: tuple[Outcomes, Outcomes], expected: Outcomes) -> None:
    """Compare what became of the trials with what was to be expected, and tell what the client said."""
    outcomes, said = measured
    other = {name: said[name] for name in outcomes if outcomes[name] != expected.get(name)}
    assert outcomes == expected, other


def check_native(client: str, measured: tuple[Outcomes, Outcomes], expected: Outcomes) -> None:
    check(measured, expected)
    assert all(REFUSALS.get(client, "") in said for said in measured[1].values()), measured[1]


@pytest.mark.parametrize("client", CLIENTS)
def test_computes_what_was_lowered(client: str) -> None:
    skip_if_absent(client)
    check(small(client, native=False), dict.fromkeys(names(client), "right"))


@pytest.mark.parametrize("client", CLIENTS)
def test_computes_every_activation_in_every_place(client: str) -> None:
    """MNN loses a sum that is an output and that Relu reads: the cell state of Keras' LSTM(activation="relu")."""
    skip_if_absent(client)
    chosen = activations(client)
    check(beside_oracle(client, chosen), dict.fromkeys(chosen, "right"))


@pytest.mark.parametrize("client", CLIENTS)
def test_computes_saturated_gates(client: str) -> None:
    """OpenCV's Tanh is NaN from 45 to 88, and Softplus is infinite from 89 on in four clients."""
    skip_if_absent(client)
    check(beside_oracle(client, {"saturated": saturated()}), {"saturated": "right"})


@pytest.mark.parametrize("client", CLIENTS)
def test_does_with_recurrent_nodes_what_it_did(client: str) -> None:
    """A client that learns an operator is to be noticed: measure again, and tell it in the README."""
    skip_if_absent(client)
    check_native(client, small(client, native=True), stored()[client]["native"])


@needs_models
@pytest.mark.parametrize("client", REAL)
def test_computes_real_models_that_were_lowered(client: str) -> None:
    skip_if_absent(client)
    check(real(client, native=False), dict.fromkeys(REAL[client], "right"))


@needs_models
@pytest.mark.parametrize("client", REAL)
def test_fails_with_real_models_that_were_not(client: str) -> None:
    skip_if_absent(client)
    measured = real(client, native=True)
    check_native(client, measured, stored()[client]["real native"])
    assert "right" not in measured[0].values()


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_stored_is_of_the_version_and_trials_of_today(client: str) -> None:
    entry = stored()[client]
    assert entry["version"] == version(client)
    assert list(entry["native"]) == sorted(names(client))
    assert entry["lowered"] == dict.fromkeys(names(client), "right")
    assert set(entry["native"].values()) <= set(OUTCOMES)


def test_the_table_of_the_readme_is_that_of_what_is_stored() -> None:
    assert table.in_readme() == table.table(stored())


@pytest.mark.parametrize("client", [client for client in CLIENTS if not of_npm(client)])
def test_the_extra_pins_what_is_tested(client: str) -> None:
    assert f'"{pin(client)}"' in PYPROJECT.read_text()
