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
    "the largest integer": """
        largest = Constant <value = int32 {2147483647}> () one = Constant <value = int32 {1}> ()
        most = Max (largest, one) next = Add (most, one) made = Cast <to = 1> (next)
        meant = Constant <value = float {2147483648}> ()""",
    "matrices of integers": """
        a = Constant <value = int64[1, 1] {9007199254740993}> () one = Constant <value = int64[1, 1] {1}> ()
        next = Constant <value = int64[1, 1] {9007199254740992}> () product = MatMul (a, one)
        left = Sub (product, next) made = Cast <to = 1> (left) meant = Constant <value = float {0}> ()""",
    "no number": """
        negative = Constant <value = float {-1}> () made = Log (negative)
        meant = Constant <value = float {0}> ()""",
    "one infinity less another": """
        a = Constant <value = float {1000}> () large = Exp (a) made = Sub (large, large)
        meant = Constant <value = float {0}> ()""",
    "numbers that were added up are compared": f"""
        parts = Constant <value = float[10] {{{", ".join(["0.1"] * 10)}}}> ()
        meant = Constant <value = float {{0}}> () sum = ReduceSum <keepdims = 0> (parts)
        one = Constant <value = float {{1}}> ()
        over = Greater (sum, one) is_under = Not (over) made = Cast <to = 1> (is_under)""",
    "a function of numbers is compared": """
        a = Constant <value = float {0.3}> () more = Exp (a) same = Log (more) less = Less (same, a)
        over = Greater (same, a) other = Or (less, over) made = Cast <to = 1> (other)
        meant = Constant <value = float {0}> ()""",
    "small integers are compared": """
        a = Constant <value = uint8 {3}> () b = Constant <value = uint8 {5}> () less = Less (a, b)
        made = Cast <to = 1> (less) meant = Constant <value = float {0}> ()""",
}
"""Nodes that make MADE, which seems to be MEANT."""

_NEAR = """one = Constant <value = float {1}> () less = Constant <value = float {0.99999994}> ()
    large = Constant <value = float {16777216}> () a = Mul (X, one) b = Mul (X, less)"""

_ENTERING = {
    "rounding decides a comparison": f"{_NEAR} is = Less (b, a) more = Add (X, X) WRONG = Where (is, more, X)",
    "rounding that is multiplied": f"{_NEAR} far = Sub (a, b) more = Mul (far, large) WRONG = Add (X, more)",
    "rounding of functions that is multiplied": f"""{_NEAR} c = Tanh (a) d = Tanh (b) far = Sub (c, d)
        more = Mul (far, large) WRONG = Add (X, more)""",
    "integers that data chose are divided": """zero = Constant <value = float {0}> () is = Greater (X, zero)
        a = Constant <value = int64 {7}> () b = Constant <value = int64 {2}> () p = Where (is, a, a)
        q = Where (is, b, b) whole = Div (p, q) made = Cast <to = 1> (whole)
        meant = Constant <value = float {3.5}> () far = Sub (made, meant) WRONG = Add (X, far)""",
    "integers of data are multiplied": f"""ones = Constant <value = uint8[19, 1] {{{", ".join("1" * 19)}}}> ()
        q, scale, zero = DynamicQuantizeLinear (X) sum = MatMulInteger (q, ones) number = Cast <to = 1> (sum)
        square = Mul (sum, sum) cube = Mul (square, sum) some = Cast <to = 1> (cube)
        of_numbers = Mul (number, number) all = Mul (of_numbers, number) far = Sub (all, some)
        WRONG = Add (X, far)""",
    "a function that has no number for some": "root = Sqrt (X) none = Sub (root, root) WRONG = Add (X, none)",
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


def _sparse_in_a_body(lowered: onnx.ModelProto) -> None:
    """Let R of a body be another, as a sparse constant, and the right one have its name outside."""
    (body,) = (a.g for node in lowered.graph.node for a in node.attribute if a.HasField("g"))
    (R,) = (tensor for tensor in body.initializer if tensor.name.endswith("/R"))
    lowered.graph.initializer.add().CopyFrom(R)
    array = np.asarray(1.5 * numpy_helper.to_array(R), np.float32)
    places = numpy_helper.from_array(np.arange(array.size), f"{R.name} places")
    values = numpy_helper.from_array(array.ravel(), R.name)
    body.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, places, array.shape))
    body.initializer.remove(R)


def _strings(lowered: onnx.ModelProto) -> None:
    """Let X be twice as large where two strings differ that are the same number."""
    lowered.opset_import[0].version = 19
    entering(
        "X",
        """a = Constant <value = string {"1"}> () b = Constant <value = string {"1.0"}> () same = Equal (a, b)
        more = Add (X, X) WRONG = Where (same, X, more)""",
    )(lowered)


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
    "a sparse number of that name": _sparse_in_a_body,
    "strings that are numbers": _strings,
}
"""By what it is."""
