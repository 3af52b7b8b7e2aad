"""What the clients do with recurrent nodes and without; see outcomes.json for what they did when last looked at."""

import pytest
from paths import MODELS

from clients.driving import OUTCOMES
from clients.environments import CLIENTS, HERE, of_npm, pin, version
from clients.measuring import Outcomes, beside_oracle, real, small, stored
from clients.trials import REAL, activations, names, saturated

PYPROJECT = HERE.parents[1] / "pyproject.toml"
needs_models = pytest.mark.skipif(not MODELS.exists(), reason=f"{MODELS.name} is not there")


def check(measured: tuple[Outcomes, Outcomes], expected: Outcomes) -> None:
    """Compare what became of the trials with what was to be expected, and tell what the client said."""
    outcomes, said = measured
    other = {name: said[name] for name in outcomes if outcomes[name] != expected.get(name)}
    assert outcomes == expected, other


def check_native(client: str, measured: tuple[Outcomes, Outcomes], expected: Outcomes) -> None:
    check(measured, expected)
    assert all(CLIENTS[client].refusal in said for said in measured[1].values()), measured[1]


@pytest.mark.parametrize("client", CLIENTS)
def test_computes_what_was_lowered(client: str) -> None:
    check(small(client, native=False), dict.fromkeys(names(client), "right"))


@pytest.mark.parametrize("client", CLIENTS)
def test_computes_every_activation_in_every_place(client: str) -> None:
    """MNN loses a sum that is an output and that Relu reads: the cell state of Keras' LSTM(activation="relu")."""
    chosen = activations(client)
    check(beside_oracle(client, chosen), dict.fromkeys(chosen, "right"))


@pytest.mark.parametrize("client", CLIENTS)
def test_computes_saturated_gates(client: str) -> None:
    """OpenCV's Tanh is NaN from 45 to 88, and Softplus is infinite from 89 on in four clients."""
    check(beside_oracle(client, {"saturated": saturated()}), {"saturated": "right"})


@pytest.mark.parametrize("client", CLIENTS)
def test_does_with_recurrent_nodes_what_it_did(client: str) -> None:
    """A client that learns an operator is to be noticed: measure again, and tell it in the README."""
    check_native(client, small(client, native=True), stored()[client]["native"])


@needs_models
@pytest.mark.parametrize("client", REAL)
def test_computes_real_models_that_were_lowered(client: str) -> None:
    check(real(client, native=False), dict.fromkeys(REAL[client], "right"))


@needs_models
@pytest.mark.parametrize("client", REAL)
def test_fails_with_real_models_that_were_not(client: str) -> None:
    measured = real(client, native=True)
    check_native(client, measured, stored()[client]["real native"])
    assert "right" not in measured[0].values()


@pytest.mark.parametrize("name", CLIENTS)
def test_what_is_stored_is_of_the_version_and_trials_of_today(name: str) -> None:
    entry = stored()[name]
    assert entry["version"] == version(name)
    assert list(entry["native"]) == sorted(names(name))
    assert entry["lowered"] == dict.fromkeys(names(name), "right")
    assert set(entry["native"].values()) <= set(OUTCOMES)


@pytest.mark.parametrize("name", [name for name in CLIENTS if CLIENTS[name].in_extra and not of_npm(name)])
def test_the_extra_pins_what_is_tested(name: str) -> None:
    assert f'"{pin(name)}"' in PYPROJECT.read_text()
