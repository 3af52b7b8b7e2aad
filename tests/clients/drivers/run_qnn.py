"""Models in onnxruntime's QNN execution provider: the HTP of a phone in float16, simulated; no node on the CPU."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime
import onnxruntime_qnn
from jobs import Arrays, main, once

NAME = "QNNExecutionProvider"
OPTIONS = {
    "backend_path": str(Path(onnxruntime_qnn.LIB_DIR_FULL_PATH, "libQnnHtp.so")),
    "enable_htp_fp16_precision": "1",
    "soc_model": "60",  # a Snapdragon X Elite
    "htp_arch": "73",
}


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    onnxruntime.register_execution_provider_library(NAME, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices(devices[:1], OPTIONS)
    session = onnxruntime.InferenceSession(model, options)

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        return dict(zip(names, session.run(names, dict(feed)), strict=True))

    return call


if __name__ == "__main__":
    main(once(load))
