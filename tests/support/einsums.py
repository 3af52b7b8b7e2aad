"""Einsums as nets write them, of open sizes A and B."""

import onnx
from texts import parse

EINSUMS = {
    "abc,cd->abd": ("A, B, 4", "4, 3", "A, B, 3"),
    "abd,acd->abc": ("A, B, 4", "A, B, 4", "A, B, C"),
    "abhd,achd->ahbc": ("A, B, 2, 4", "A, B, 2, 4", "A, 2, B, C"),
    "ahbc,achd->abhd": ("A, 2, B, B", "A, B, 2, 4", "A, B, 2, 4"),
    "abhd,hde->abe": ("A, B, 2, 4", "2, 4, 3", "A, B, 3"),
    "abc->acb": ("A, B, 4", "", "A, 4, B"),
    "abc->b": ("A, B, 4", "", "B"),
    "abc,abc->ab": ("A, B, 4", "A, B, 4", "A, B"),
    "ab,ac->abc": ("A, B", "A, 3", "A, B, 3"),
    "abc,b->ac": ("A, B, 4", "B", "A, 4"),
    "abc,abd->acd": ("A, B, 4", "A, B, 3", "A, 4, 3"),
    "ab,ab->": ("A, B", "A, B", ""),
    "abc,d->ab": ("A, B, 4", "3", "A, B"),
    "i,j->ji": ("A", "B", "B, A"),
    "...c,cd->...d": ("A, B, 4", "4, 3", "A, B, 3"),
    "...ij,kj->...ik": ("2, A, B, 4", "3, 4", "2, A, B, 3"),
    "...i,...i->...": ("A, B, 4", "A, B, 4", "A, B"),
    "...ij,...jk->...ik": ("2, A, B, 4", "2, A, 4, 3", "2, A, B, 3"),
    "...c,cd": ("A, B, 4", "4, 3", "A, B, 3"),
}
"""By equation the shapes of its operands and of its result."""


def einsum_of(equation: str) -> onnx.ModelProto:
    """A model of an Einsum."""
    first, second, result = EINSUMS[equation]
    given = f"float[{first}] x" + (f", float[{second}] z" if second else "")
    wanted = f"float[{result}] y" if result else "float y"
    names = "x, z" if second else "x"
    return parse(f'g ({given}) => ({wanted}) {{ y = Einsum <equation = "{equation}"> ({names}) }}')
