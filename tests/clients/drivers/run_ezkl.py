"""Models in ezkl, in the fixed point of its circuits; no proof is made."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ezkl
import numpy as np
from jobs import Arrays, main, once


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    settings, compiled, given, witness = (
        model.with_name(name) for name in ("settings.json", "model.ezkl", "input.json", "witness.json")
    )
    options = ezkl.PyRunArgs()
    options.input_scale = options.param_scale = 13
    options.lookup_range, options.logrows = (-(2**23), 2**23), 25
    ezkl.gen_settings(str(model), str(settings), py_run_args=options)
    ezkl.compile_circuit(str(model), str(compiled), str(settings))
    told = json.loads(settings.read_text())
    scales, shapes = told["model_output_scales"], told["model_instance_shapes"][-len(names) :]

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        given.write_text(json.dumps({"input_data": [np.ravel(array).tolist() for array in feed.values()]}))
        found = ezkl.gen_witness(str(given), str(compiled), str(witness))
        results = [
            np.array([ezkl.felt_to_float(felt, scale) for felt in felts], np.float32).reshape(shape)
            for felts, scale, shape in zip(found["outputs"], scales, shapes, strict=True)
        ]
        return dict(zip(names, results, strict=True))

    return call


if __name__ == "__main__":
    main(once(load))
