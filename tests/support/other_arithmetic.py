"""Edits of a lowered model that are none in real numbers, or seem to be: types, rounding and defaults make them."""

from collections.abc import Mapping

import numpy as np
import onnx
from impostors import Edit, entering
from onnx import numpy_helper, parser

_ADDED = {
    "integers are divided": """
        a = Constant <value = int64 {7}> () b = Constant <value = int64 {2}> () whole = Div (a, b)
        made = Cast <to = 1> (whole) meant = Constant <value = float {3.5}> ()""",
    "an integer of 8 bits": """
        a = Constant <value = int64 {300}> () small = Cast <to = 2> (a) made = Cast <to = 1> (small)
        meant = Constant <value = float {300}> ()""",
    "a constant of 16 bits": """
        meant = Constant <value = float {10003}> () small = Cast <to = 10> (meant) made = Cast <to = 1> (small)""",
    "a constant that is lost": """
        large = Constant <value = float {1e8}> () meant = Constant <value = float {3}> ()
        sum = Add (meant, large) made = Sub (sum, large)""",
    "a constant that is too large": """
        large = Constant <value = float {1267650600228229401496703205376}> ()
        small = Constant <value = float {7.888609052210118e-31}> () meant = Constant <value = float {1}> ()
        infinite = Mul (large, large) a = Mul (infinite, small) made = Mul (a, small)""",
    "numbers that are added up": """
        large = Constant <value = float[1, 3] {1e8, 3, -1e8}> () ones = Constant <value = float[3, 1] {1, 1, 1}> ()
        made = MatMul (large, ones) meant = Constant <value = float {3}> ()""",
    "small integers are compared": """
        a = Constant <value = uint8 {3}> () b = Constant <value = uint8 {5}> () less = Less (a, b)
        made = Cast <to = 1> (less) meant = Constant <value = float {0}> ()""",
}
"""Nodes that make MADE, which seems to be MEANT."""

_ENTERING = {
    "data of 16 bits": "small = Cast <to = 10> (X) WRONG = Cast <to = 1> (small)",
    "data of 16 bits, of the other kind": "small = Cast <to = 16> (X) WRONG = Cast <to = 1> (small)",
    "data that are lost": """large = Constant <value = float {1e8}> () sum = Add (X, large)
        WRONG = Sub (sum, large)""",
    "a sum of all": """none = Sub (X, X) no_axes = Constant <value = int64[0] {}> ()
        sum = ReduceSum (X, no_axes) WRONG = Add (none, sum)""",
    "steps in 8 bits": """zero = Constant <value_ints = [0]> () all = Shape (X) T = Gather (all, zero)
        small = Cast <to = 3> (T) length = Cast <to = 7> (small) WRONG = Slice (X, zero, length, zero)""",
}


def _leaving(text: str) -> Edit:
    """Let nodes, as text, that make Y of RIGHT come behind whatever makes it."""

    def edit(lowered: onnx.ModelProto) -> None:
        for node in lowered.graph.node:
            node.output[:] = ["RIGHT" if name == "Y" else name for name in node.output]
        lowered.graph.node.extend(parser.parse_graph(f"made () => () {{ {text} }}").node)

    return edit


def _hidden_by_the_outer_one(lowered: onnx.ModelProto) -> None:
    """Let R of a body be another, and the right one have its name outside."""
    (body,) = (a.g for node in lowered.graph.node for a in node.attribute if a.HasField("g"))
    (R,) = (tensor for tensor in body.initializer if tensor.name.endswith("/R"))
    lowered.graph.initializer.add().CopyFrom(R)
    array = np.asarray(1.5 * numpy_helper.to_array(R), np.float32)
    R.CopyFrom(numpy_helper.from_array(array, R.name))


OTHER_ARITHMETIC: Mapping[str, Edit] = {
    **{
        name: entering("X", f"{text} far = Sub (made, meant) WRONG = Add (X, far)") for name, text in _ADDED.items()
    },
    **{name: entering("X", text) for name, text in _ENTERING.items()},
    "a factor that rounding hides": _leaving(
        """a = Constant <value = float {1e5}> () b = Constant <value = float {100001.01}> ()
        more = Mul (RIGHT, b) less = Mul (RIGHT, a) Y = Sub (more, less)"""
    ),
    "another number of that name": _hidden_by_the_outer_one,
}
"""By what it is."""
