"""The cases that every test of meaning runs: each trap of the specification by its name, and random ones."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from cases import ALL_OPTIONAL, FORMALS, FUNCTIONS, RESULTS, Attributes, Case
from oracle import DEFAULT_ACTIVATIONS, GATES

RANDOM_CASES = 150


def _for_each_operator(name: str, attributes: Attributes | None = None, **fields: Any) -> Iterator[Case]:
    for op in GATES:
        yield Case(f"{op}_{name}", op, attributes or {}, **fields)


def _versions() -> Iterator[Case]:
    for flag in (0, 1):
        yield from _for_each_operator(f"output_sequence_{flag}", {"output_sequence": flag})
        yield from _for_each_operator(
            f"output_sequence_{flag}_only_Y_h", {"output_sequence": flag}, outputs=("Y_h",)
        )
    yield Case("GRU_default_direction_of_version_1", "GRU", {"direction": "foward"})
    yield from _for_each_operator("plain", T=4, N=2, I=3, H=5)
    yield from _for_each_operator("square_weights", T=4, N=2, I=4, H=4, optional=())


def _activation_attributes() -> Iterator[Case]:
    queue = {"activations": ["Sigmoid", "LeakyRelu", "Elu"], "activation_alpha": [0.3, 0.7]}
    yield Case("LSTM_alpha_is_a_queue", "LSTM", queue)
    queues = {
        "direction": "bidirectional",
        "activations": ["LeakyRelu", "Tanh", "HardSigmoid", "Sigmoid", "ScaledTanh", "Elu"],
        "activation_alpha": [0.9, 0.1, 0.7, 0.4],
        "activation_beta": [0.3, 0.8],
    }
    yield Case("LSTM_queues_run_across_directions", "LSTM", queues)
    yield Case(
        "GRU_queues_run_across_directions",
        "GRU",
        {
            "direction": "bidirectional",
            "activations": ["HardSigmoid", "LeakyRelu", "Sigmoid", "ScaledTanh"],
            "activation_alpha": [0.3, 0.6, 0.8],
            "activation_beta": [0.4, 0.9],
        },
    )
    yield Case(
        "RNN_queues_run_across_directions",
        "RNN",
        {"direction": "bidirectional", "activations": ["Elu", "LeakyRelu"], "activation_alpha": [0.2, 0.8]},
    )
    surplus = {"activation_alpha": [0.4, 0.6, 0.8, 0.9], "activation_beta": [0.1, 0.2]}
    yield from _for_each_operator("surplus_parameters", surplus)
    yield Case(
        "LSTM_queue_ends_early",
        "LSTM",
        {"activations": ["HardSigmoid", "LeakyRelu", "Elu"], "activation_alpha": [0.3]},
    )
    for name in ("LeakyRelu", "HardSigmoid", "Elu", "Affine", "ScaledTanh", "ThresholdedRelu"):
        yield Case(f"RNN_default_parameters_of_{name}", "RNN", {"activations": [name]})
    yield Case("RNN_default_beta_of_Affine", "RNN", {"activations": ["Affine"], "activation_alpha": [0.5]})
    yield Case(
        "GRU_default_parameters_of_the_second_direction",
        "GRU",
        {
            "direction": "bidirectional",
            "activations": ["Sigmoid", "ScaledTanh", "Sigmoid", "ScaledTanh"],
            "activation_alpha": [0.7],
            "activation_beta": [0.9],
        },
    )
    letters = {"RNN": ["sOFTSIGN"], "GRU": ["hardSIGMOID", "TANH"], "LSTM": ["sigmoid", "ELU", "softplus"]}
    for op, names in letters.items():
        yield Case(f"{op}_letter_case", op, {"activations": names}, native=op != "RNN")
    for direction in ("forward", "reverse"):
        two = {"direction": direction, "activations": ["Softsign", "Relu"]}
        yield Case(f"RNN_{direction}_uses_the_first_of_two_names", "RNN", two)
    for dtype in ("float32", "float64", "float16"):
        yield Case(
            f"RNN_ThresholdedRelu_is_0_at_alpha_{dtype}",
            "RNN",
            {"activations": ["ThresholdedRelu"], "activation_alpha": [1.0]},
            fill={"X": 0.5, "W": 1.0, "R": 0.0},
            optional=(),
            dtype=dtype,
        )


def _activations() -> Iterator[Case]:
    for name in FUNCTIONS:
        for dtype in ("float32", "float64", "float16"):
            attributes = {"activations": [name], "activation_alpha": [0.6], "activation_beta": [0.7]}
            yield Case(f"RNN_{name}_{dtype}", "RNN", attributes, dtype=dtype)
        for dtype in ("float32", "float64"):
            yield Case(
                f"RNN_{name}_{dtype}_of_large_arguments",
                "RNN",
                {"activations": [name], "activation_alpha": [0.6], "activation_beta": [0.7]},
                T=2,
                dtype=dtype,
                x_scale=300.0,
                native=name != "Softplus",  # its log(1 + e^x) overflows
            )
    for dtype in ("float32", "float64"):
        yield Case(
            f"LSTM_different_activations_{dtype}",
            "LSTM",
            {
                "direction": "bidirectional",
                "activations": ["HardSigmoid", "Softsign", "LeakyRelu", "Sigmoid", "Elu", "Softplus"],
                "activation_alpha": [0.3, 0.2, 0.9],
                "activation_beta": [0.45],
            },
            optional=("B", "P"),
            dtype=dtype,
        )


def _other_attributes() -> Iterator[Case]:
    strong: dict[str, Any] = {"x_scale": 3.0, "optional": ALL_OPTIONAL}
    for direction in ("forward", "bidirectional"):
        yield from _for_each_operator(f"clip_{direction}", {"clip": 0.2, "direction": direction}, **strong)
    yield from _for_each_operator("clip_float64", {"clip": 0.2}, dtype="float64", **strong)
    yield from _for_each_operator("clip_float16", {"clip": 0.2}, dtype="float16", **strong)
    yield from _for_each_operator("clip_beyond_float16", {"clip": 1e6}, dtype="float16", **strong)
    yield from _for_each_operator("infinite_clip", {"clip": math.inf}, x_scale=3.0)
    for label, clip in {"0": 0.0, "negative": -1.0, "nan": math.nan, "minus_infinity": -math.inf}.items():
        yield Case(f"RNN_clip_{label}", "RNN", {"clip": clip}, x_scale=3.0)
    yield Case("GRU_clip_not_inside_the_reset_product", "GRU", {"clip": 0.1, "linear_before_reset": 1}, x_scale=0.1)
    yield Case("LSTM_clip_not_of_C", "LSTM", {"clip": 0.1}, fill={"initial_c": 2.0}, optional=("B", "initial_c"))
    for flag in (1, 2, -1):
        yield Case(f"LSTM_input_forget_{flag}", "LSTM", {"input_forget": flag})
        yield Case(f"LSTM_input_forget_{flag}_peepholes", "LSTM", {"input_forget": flag}, optional=ALL_OPTIONAL)
        yield Case(f"GRU_linear_before_reset_{flag}", "GRU", {"linear_before_reset": flag})
    for direction in ("forward", "reverse", "bidirectional"):
        attributes = {"direction": direction}
        yield Case(f"LSTM_peepholes_{direction}", "LSTM", attributes, optional=("B", "P"))
        yield from _for_each_operator(
            f"initial_states_{direction}", attributes, optional=("initial_h", "initial_c")
        )
        yield Case(
            f"GRU_linear_before_reset_{direction}",
            "GRU",
            attributes | {"linear_before_reset": 1},
            optional=ALL_OPTIONAL,
        )
    yield Case("GRU_linear_before_reset_without_B", "GRU", {"linear_before_reset": 1}, optional=("initial_h",))
    yield Case("GRU_linear_before_reset_clip", "GRU", {"linear_before_reset": 1, "clip": 0.3}, **strong)
    yield from _for_each_operator("hidden_size_from_R", hidden_size=False)
    yield from _for_each_operator("hidden_size_from_R_input", hidden_size=False, weights="input")
    for ir3 in (False, True):
        yield from _for_each_operator(
            f"hidden_size_from_R_node{'_ir3' if ir3 else ''}", hidden_size=False, weights="node", ir3=ir3
        )


def _layouts() -> Iterator[Case]:
    for direction in ("forward", "reverse", "bidirectional"):
        yield from _for_each_operator(
            f"layout_1_{direction}", {"layout": 1, "direction": direction}, optional=ALL_OPTIONAL
        )
    both = {"layout": 1, "direction": "bidirectional"}
    yield from _for_each_operator("layout_1_symbolic", both, optional=ALL_OPTIONAL, x="symbolic")
    yield from _for_each_operator("layout_1_float16", both, optional=ALL_OPTIONAL, dtype="float16")
    yield from _for_each_operator("layout_1_float16_from_zeros", {"layout": 1}, dtype="float16")
    yield from _for_each_operator("layout_1_states_only", both, outputs=("Y_h", "Y_c"))
    yield from _for_each_operator("layout_1_batch_is_length", {"layout": 1}, T=3, N=3)
    yield from _for_each_operator("layout_1_T_1", both, T=1, optional=ALL_OPTIONAL)
    yield from _for_each_operator("layout_1_T_0", both, T=0, optional=ALL_OPTIONAL)
    yield from _for_each_operator("layout_0_given", {"layout": 0})


def _lengths() -> Iterator[Case]:
    full: dict[str, Any] = {"optional": ALL_OPTIONAL, "N": 4, "lengths": (2, 5, 0, 4)}
    for direction in ("forward", "reverse", "bidirectional"):
        attributes = {"direction": direction}
        for label, padding in {"nan": math.nan, "inf": math.inf}.items():
            yield from _for_each_operator(f"lengths_{direction}_{label}", attributes, padding=padding, **full)
        yield from _for_each_operator(
            f"lengths_{direction}_without_initial_states",
            attributes,
            N=4,
            lengths=(5, 0, 1, 3),
            optional=("B", "sequence_lens"),
            padding=math.nan,
        )
        for x in ("batch", "length", "symbolic", "unknown", "unranked"):
            yield Case(f"LSTM_lengths_{direction}_x_{x}", "LSTM", attributes, x=x, padding=math.nan, **full)
    both = {"direction": "bidirectional"}
    yield from _for_each_operator("lengths_known", both, lengths_from="initializer", padding=math.nan, **full)
    yield from _for_each_operator("lengths_known_symbolic", both, lengths_from="initializer", x="length", **full)
    yield from _for_each_operator("lengths_cast", both, lengths_from="cast", **full)
    yield from _for_each_operator("lengths_only_Y", both, outputs=("Y",), padding=math.nan, **full)
    yield from _for_each_operator("lengths_only_states", both, outputs=("Y_h", "Y_c"), padding=math.nan, **full)
    for dtype in ("float64", "float16"):
        yield from _for_each_operator(f"lengths_{dtype}", both, dtype=dtype, padding=math.nan, **full)
    for label, lengths in {"all_full": (5, 5, 5), "all_0": (0, 0, 0), "none_full": (3, 1, 2)}.items():
        for source in ("input", "initializer"):
            yield from _for_each_operator(
                f"lengths_{label}_{source}", both, lengths=lengths, lengths_from=source, optional=ALL_OPTIONAL
            )
    yield from _for_each_operator("lengths_T_1", both, T=1, lengths=(1, 0, 1), optional=ALL_OPTIONAL)
    yield from _for_each_operator("lengths_T_1_batch", both, T=1, x="batch", optional=ALL_OPTIONAL)
    yield from _for_each_operator("lengths_T_1_batch_without_states", T=1, x="batch", optional=("sequence_lens",))
    yield from _for_each_operator("lengths_N_1", both, N=1, lengths=(3,), optional=ALL_OPTIONAL)


def _edges() -> Iterator[Case]:
    both = {"direction": "bidirectional"}
    for x in ("static", "symbolic"):
        for optional in (("B",), ALL_OPTIONAL):
            extra = "_all_inputs" if len(optional) > 1 else ""
            sizes: dict[str, dict[str, Any]] = {"T_0": {"T": 0}, "N_0": {"N": 0}, "I_0": {"I": 0}}
            sizes |= {"T_0_N_0": {"T": 0, "N": 0}, "T_1": {"T": 1}}
            for label, size in sizes.items():
                yield from _for_each_operator(f"{label}_{x}{extra}", both, x=x, optional=optional, **size)
    yield from _for_each_operator("T_0_length", both, T=0, x="length", optional=ALL_OPTIONAL)
    states = ("B", "initial_h", "initial_c")
    for x in ("static", "length", "symbolic"):
        yield from _for_each_operator(f"T_0_{x}_states", both, T=0, x=x, optional=states)
    yield from _for_each_operator("T_0_only_Y_h", T=0, outputs=("Y_h",))
    yield from _for_each_operator("H_1", both, H=1, optional=ALL_OPTIONAL)
    yield from _for_each_operator("all_sizes_1", T=1, N=1, I=1, H=1, optional=ALL_OPTIONAL)
    yield from _for_each_operator("long", both, T=60, N=2)
    for op in GATES:
        yield from _connections(op)


def _connections(op: str) -> Iterator[Case]:
    """Any subset of the outputs, and any one optional input, by empty names and by trimming."""
    results = RESULTS[op]
    for mask in range(1, 2 ** len(results)):
        outputs = tuple(s for n, s in enumerate(results) if mask >> n & 1)
        for trimmed in (False, True):
            name = f"{op}_outputs_{'_'.join(outputs)}{'_trimmed' if trimmed else ''}"
            yield Case(name, op, {"direction": "bidirectional"}, outputs=outputs, trimmed=trimmed)
    for symbol in ("", *FORMALS[op][3:]):
        for trimmed in (False, True):
            name = f"{op}_optional_{symbol or 'none'}{'_trimmed' if trimmed else ''}"
            yield Case(name, op, optional=(symbol,), trimmed=trimmed)


def _surroundings() -> Iterator[Case]:
    both = {"direction": "bidirectional"}
    for x in ("batch", "length", "symbolic", "unknown", "unranked", "transposed"):
        yield from _for_each_operator(f"x_{x}", both, x=x)
        yield from _for_each_operator(f"x_{x}_reverse_states", {"direction": "reverse"}, x=x, optional=ALL_OPTIONAL)
    yield from _for_each_operator("x_known", both, x="known", optional=ALL_OPTIONAL)
    everything: dict[str, Any] = {
        "states_from": "initializer",
        "lengths_from": "initializer",
        "optional": ALL_OPTIONAL,
    }
    yield from _for_each_operator("everything_known", both, x="known", **everything)
    yield from _for_each_operator("ir3_everything_given", both, ir3=True, **everything)
    for weights in ("input", "unsized", "overridable", "constant", "node"):
        yield from _for_each_operator(f"weights_{weights}", both, weights=weights, optional=ALL_OPTIONAL)
    for dtype in ("float64", "float16"):
        fields: dict[str, Any] = {"dtype": dtype, "optional": ALL_OPTIONAL}
        yield from _for_each_operator(f"all_inputs_{dtype}", both, **fields)
        yield from _for_each_operator(f"weights_node_{dtype}", both, weights="node", **fields)
        yield from _for_each_operator(f"x_transposed_{dtype}", both, x="transposed", **fields)
        yield from _for_each_operator(f"x_symbolic_{dtype}", both, x="symbolic", **fields)
    yield from _for_each_operator("states_known", both, states_from="initializer", optional=ALL_OPTIONAL)
    yield from _for_each_operator("ir3", both, ir3=True, optional=ALL_OPTIONAL)
    yield from _for_each_operator("ir3_weights_node", both, ir3=True, weights="node", optional=ALL_OPTIONAL)
    yield from _for_each_operator("ir3_symbolic", both, ir3=True, x="symbolic", optional=ALL_OPTIONAL)
    yield from _for_each_operator("in_if", both, scope="if", optional=ALL_OPTIONAL)
    yield from _for_each_operator("in_if_ir3", both, scope="if", ir3=True, optional=ALL_OPTIONAL)
    yield from _for_each_operator("in_function", both, scope="function", weights="input", optional=ALL_OPTIONAL)
    for op, names in DEFAULT_ACTIVATIONS.items():
        attributes = {"direction": "reverse", "activations": names, "clip": 0.3}
        yield Case(f"{op}_attribute_references", op, attributes, scope="function", weights="input")
    yield from _for_each_operator("bfloat16", both, dtype="bfloat16", T=3, optional=ALL_OPTIONAL)


def random_case(seed: int) -> Case:
    """Return a node with random attributes, inputs and outputs."""
    rng = np.random.default_rng(seed)

    def chance(probability: float) -> bool:
        return bool(rng.random() < probability)

    def choice(options: Sequence[Any]) -> Any:
        return options[int(rng.integers(len(options)))]

    op = list(GATES)[seed % 3]
    dtype = ["float32", "float32", "float64", "float16"][seed // 3 % 4]
    attributes: dict[str, Any] = {"direction": choice(["forward", "reverse", "bidirectional", "bidirectional"])}
    dirs = 2 if attributes["direction"] == "bidirectional" else 1
    if chance(0.7):
        attributes |= _random_activations(rng, op, dirs, dtype)
    if chance(0.4):
        attributes["clip"] = float(choice([0.1, 0.3, 1.0, math.inf, *([-1.0, math.nan] if op == "RNN" else [])]))
    if op != "RNN" and chance(0.5):
        attributes["linear_before_reset" if op == "GRU" else "input_forget"] = int(choice([0, 1, 1, 2]))
    if chance(0.2):
        attributes["layout"] = int(choice([0, 1]))
    weights = choice(["initializer", "initializer", "input", "unsized", "overridable", "constant", "node"])
    optional = tuple(s for s in FORMALS[op][3:] if chance(0.6))
    outputs = tuple(s for s in RESULTS[op] if chance(0.7)) or (choice(RESULTS[op]),)
    return Case(
        f"random_{seed}_{op}",
        op,
        attributes,
        T=int(choice([1, 2, 3, 4, 5, 7])),
        N=int(choice([1, 2, 3, 4])),
        I=int(choice([1, 2, 3, 5])),
        H=int(choice([1, 2, 3, 4, 6])),
        optional=optional,
        outputs=outputs,
        dtype=dtype,
        padding=choice([None, math.nan, -math.inf]) if "sequence_lens" in optional else None,
        x=choice(["static", "static", "batch", "length", "symbolic", "unknown", "unranked", "transposed"]),
        weights=weights,
        lengths_from=choice(["input", "input", "initializer", "cast"]),
        states_from=choice(["input", "initializer"]),
        trimmed=chance(0.5),
        hidden_size=chance(0.8) or weights == "unsized",
        ir3=chance(0.5) and weights != "overridable",  # only from IR version 4 are initializers overridable
    )


def _random_activations(rng: np.random.Generator, op: str, dirs: int, dtype: str) -> dict[str, Any]:
    """Random names, with queues from empty to too long."""
    count = len(DEFAULT_ACTIVATIONS[op]) * dirs
    # A step function turns the rounding of float16 into a difference of any size.
    functions = [f for f in FUNCTIONS if dtype != "float16" or f != "ThresholdedRelu"]
    names = [functions[i] for i in rng.integers(len(functions), size=count)]
    if op != "RNN":  # the RNN of onnxruntime accepts one letter case only
        names = [[name, name.lower(), name.upper()][rng.integers(3)] for name in names]
    attributes: dict[str, Any] = {"activations": names}
    for queue in ("activation_alpha", "activation_beta"):
        if length := int(rng.integers(0, count + 3)):
            attributes[queue] = [float(np.float32(v)) for v in rng.uniform(0.1, 0.9, length)]
    return attributes


NAMED = [
    *_versions(),
    *_activation_attributes(),
    *_activations(),
    *_other_attributes(),
    *_layouts(),
    *_lengths(),
    *_edges(),
    *_surroundings(),
]
RANDOM = [random_case(seed) for seed in range(RANDOM_CASES)]
CASES = [*NAMED, *RANDOM]
BY_NAME = {case.name: case for case in CASES}
