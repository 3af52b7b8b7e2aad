"""An Einsum of any sizes is a MatMul with what moves axes around it, where a runtime takes no Einsum so."""

from typing import Any

import numpy as np
import pytest
from einsums import EINSUMS, einsum_of
from running import assert_close, operators, run
from texts import parse, random_feed

import rnn_lowering as rl


@pytest.mark.parametrize("equation", EINSUMS)
def test_opencv_gets_products(equation: str) -> None:
    model = einsum_of(equation)
    lowered = rl.lower(model, target="opencv")
    assert "Einsum" not in operators(lowered)
    for A, B in ((2, 5), (3, 2), (1, 1)):
        feed = random_feed(model, A=A, B=B)
        assert_close(run(lowered, feed), run(model, feed))


@pytest.mark.parametrize("equation", [each for each in EINSUMS if "..." in each])
def test_tract_gets_no_ellipsis(equation: str) -> None:
    model = einsum_of(equation)
    lowered = rl.lower(model, target="tract")
    assert "Einsum" not in operators(lowered)
    feed = random_feed(model, A=2, B=5)
    assert_close(run(lowered, feed), run(model, feed))


@pytest.mark.parametrize("target", ["opencv", "mnn"])
@pytest.mark.parametrize("equation", ["abc->ca", "abcd,cde->abe", "...ab,...bc->...ac"])
def test_known_sizes(equation: str, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """These runtimes are right there, so the formula is asked for alone."""
    sizes = dict(zip("abcde", (2, 3, 4, 5, 6), strict=True))
    terms, out = equation.split("->")
    shapes = [[7] * ("." in term) + [sizes[x] for x in term.strip(".")] for term in (*terms.split(","), out)]
    *operands, result = (f"float[{', '.join(map(str, shape))}]" for shape in shapes)
    names = "xz"[: len(operands)]
    given = ", ".join(f"{operand} {name}" for operand, name in zip(operands, names, strict=True))
    model = parse(f'g ({given}) => ({result} y) {{ y = Einsum <equation = "{equation}"> ({", ".join(names)}) }}')
    monkeypatch.setattr(f"rnn_lowering.targets.runtimes.{target}._MISREAD", {})
    feed = random_feed(model)
    assert np.allclose(run(rl.lower(model, target=target), feed)["y"], run(model, feed)["y"], atol=1e-5)
