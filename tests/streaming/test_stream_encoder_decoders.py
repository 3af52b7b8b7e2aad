"""Encoders and decoders with skips: strided convolutions, a GRU, transposed convolutions, as in Demucs and U-Nets.

A skip is cut or padded by its position, since the decoder returns fewer samples, or more, than the encoder read.
The oracle is onnxruntime on the original, at each length.
"""

from collections.abc import Callable

import pytest
from stream_models import assert_at_every_length, over, recurrent

LAYER = """t = Transpose <perm = [2, 0, 1]> (h2)  v = GRU <hidden_size = 4> (t, W4, R4, B4)  q = Squeeze (v, [1])
    z = Transpose <perm = [1, 2, 0]> (q)  """
GRU = {f"{name}4": array for name, array in recurrent("GRU", 4, 4).items()}


def encoded(n: int, x: str, first: int, last: int) -> str:
    """A level of Demucs's encoder, from x to h: a convolution of 8 samples each 4, and a gate."""
    return f"""e{n} = Conv <strides = [4]> ({x}, E{n}[{last}, {first}, 8])  r{n} = Relu (e{n})
        g{n} = Conv (r{n}, G{n}[{2 * last}, {last}, 1])  a{n}, b{n} = Split <axis = 1> (g{n}, [{last}, {last}])
        s{n} = Sigmoid (b{n})  h{n} = Mul (a{n}, s{n})  """


def decoded(n: int, x: str, cut: str, first: int, last: int, kernel: int = 1) -> str:
    """A level of its decoder, from x to u: the skip h that is cut to c, a gate, and a transposed convolution."""
    return f"""{cut}  d{n} = Add ({x}, c{n})  p{n} = Conv (d{n}, D{n}[{2 * first}, {first}, {kernel}])
        i{n}, j{n} = Split <axis = 1> (p{n}, [{first}, {first}])  k{n} = Sigmoid (j{n})  m{n} = Mul (i{n}, k{n})
        u{n} = ConvTranspose <strides = [4]> (m{n}, T{n}[{first}, {last}, 8])  """


def from_start(n: int, x: str) -> str:
    """`skip[..., : x.shape[-1]]`."""
    return f"w{n} = Shape <start = 2> ({x})  c{n} = Slice (h{n}, [0], w{n}, [2])"


def centred(n: int, x: str) -> str:
    """`center_trim` of Demucs."""
    return f"""w{n} = Shape <start = 2> ({x})  l{n} = Shape <start = 2> (h{n})  o{n} = Sub (l{n}, w{n})
        f{n} = Div (o{n}, [2])  y{n} = Add (f{n}, w{n})  c{n} = Slice (h{n}, f{n}, y{n}, [2])"""


def demucs(before: int, behind: int, end: str, cut: Callable[[int, str], str] = from_start, kernel: int = 1) -> str:
    """Two levels over a padded signal; `end` computes Y from u1."""
    return (
        f"x = Pad (X, [0, 0, {before}, 0, 0, {behind}])  {encoded(1, 'x', 2, 3)} {encoded(2, 'h1', 3, 4)} {LAYER}"
        f"{decoded(2, 'z', cut(2, 'z'), 4, 3, kernel)} n2 = Relu (u2)"
        f"{decoded(1, 'n2', cut(1, 'n2'), 3, 2, kernel)} nX = Shape <start = 2> (X)  {end}"
    )


UNET = f"""e1 = Conv (X, E1[3, 2, 3])  h1 = Relu (e1)  e2 = Conv <strides = [2]> (h1, E2[4, 3, 4])  h2 = Relu (e2)
    {LAYER}  d2 = Add (z, h2)  u2 = ConvTranspose <strides = [2]> (d2, T2[4, 3, 2])"""
SYMMETRIC = f"""e1 = Conv <strides = [2], pads = [1, 1]> (X, E1[3, 2, 4])  h1 = Relu (e1)
    e2 = Conv <strides = [2], pads = [1, 1]> (h1, E2[4, 3, 4])  h2 = Relu (e2)  {LAYER}  d2 = Add (z, h2)
    u2 = ConvTranspose <strides = [2], pads = [1, 1]> (d2, T2[4, 3, 4])  c1 = Concat <axis = 1> (u2, h1)
    Y = ConvTranspose <strides = [2], pads = [1, 1]> (c1, T1[6, 2, 4])"""
PADDED = f"""{UNET}  l = Shape <start = 2> (h1)  w = Shape <start = 2> (u2)  o = Sub (l, w)  f = Div (o, [2])
    r = Sub (o, f)  p = Concat <axis = 0> ([0, 0], f, [0, 0], r)  c = Pad (u2, p)  Y = Add (c, h1)"""
TRIMMED = "Y = Slice (u1, [0], nX, [2])"
LAST = "m = Neg (nX)  Y = Slice (u1, m, far, [2])"

NETS = {
    "no padding": (demucs(0, 0, "Y = Neg (u1)"), 16, 32, 12),
    "padding behind": (demucs(0, 20, TRIMMED), 16, 32, 0),
    "padding in front": (demucs(20, 0, TRIMMED), 16, 0, 0),
    "padding in front, the last samples": (demucs(20, 0, LAST), 16, 20, 0),
    "centred skips": (demucs(20, 20, "Y = Neg (u1)", centred, 3), 16, 40, 4),
    "centred skips without padding": (demucs(0, 0, "Y = Neg (u1)", centred, 3), 16, 72, 52),
    "a skip that is cropped": (f"{UNET}  c1 = Slice (h1, [1], [-1], [2])  Y = Add (u2, c1)", 2, 4, 4),
    "a decoder that is padded": (PADDED, 2, 3, 2),
    "symmetric paddings": (SYMMETRIC, 4, 7, 0),
}
"""By what becomes of the skips: the nodes, the unit, how many frames the output is late, and how many it lacks."""


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NETS)
def test_skips_meet_their_own_samples(name: str) -> None:
    nodes, unit, late, lacks = NETS[name]
    plan = assert_at_every_length(over("float[1, 2, time] X", nodes, GRU), "time", most=130 if unit > 4 else 60)
    assert (plan["unit"], plan["delay"].get("Y", 0), plan["short"].get("Y", 0)) == (unit, late, lacks)
