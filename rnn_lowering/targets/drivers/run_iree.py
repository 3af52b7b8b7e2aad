"""Models in IREE, imported, compiled for this CPU and run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import iree.compiler
import iree.runtime
import numpy as np
from iree.compiler.tools.import_onnx import __main__ as importer
from jobs import Arrays, main, once


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    imported = str(model.with_suffix(".mlir"))
    if importer.main(importer.parse_arguments([str(model), "-o", imported])):
        raise RuntimeError("IREE does not import the model")
    compiled = iree.compiler.tools.compile_file(
        imported, target_backends=["llvm-cpu"], extra_args=["--iree-llvmcpu-target-cpu=host"]
    )
    module = iree.runtime.load_vm_flatbuffer(compiled, driver="local-sync")
    function = next(
        name for name in module.vm_module.function_names if not name.startswith("__") and "$" not in name
    )

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        results = getattr(module, function)(*feed.values())
        listed = results if isinstance(results, (list, tuple)) else [results]
        return {name: np.asarray(result.to_host()) for name, result in zip(names, listed, strict=True)}

    return call


if __name__ == "__main__":
    main(once(load))
