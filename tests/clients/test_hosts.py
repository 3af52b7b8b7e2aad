"""The programs of examples/host: built, and frame by frame equal to the whole signal in onnxruntime."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from cases import Array
from paths import EXAMPLES

import rnn_lowering as rl
from clients.environments import python

HOST = EXAMPLES / "host"
DENOISER = EXAMPLES / "denoiser_forward.onnx"
HEADER = "onnxruntime_c_api.h"
HEADERS = (os.environ.get("ONNXRUNTIME_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime")
NO_HEADER = f"{HEADER} is in none of ONNXRUNTIME_INCLUDE, /usr/include/onnxruntime, /usr/local/include/onnxruntime"

pytestmark = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("c++")), reason="cmake and a C++ compiler are not there"
)


@pytest.fixture(scope="module")
def frames() -> Array:
    return np.random.default_rng(0).random((1, 200, 129), np.float32)


@pytest.fixture
def mask(frames: Array) -> Array:
    """What the whole-sequence model returns for all frames at once."""
    session = onnxruntime.InferenceSession(DENOISER, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["mask"], {"magnitude": frames})[0])


def built(program: str, folder: Path, **settings: object) -> Path:
    """Build a program with CMake."""
    given = [f"-D{name}={value}" for name, value in settings.items()]
    for command in (["cmake", "-S", str(HOST), "-B", str(folder), *given], ["cmake", "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout + done.stderr
    return folder / program


def run(program: Path, step: Path, frames: Array) -> subprocess.CompletedProcess[str]:
    frames.tofile(step.with_name("magnitude.f32"))
    command = [program, step, step.with_name("magnitude.f32"), step.with_name("mask.f32")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def masks(program: Path, step: Path, frames: Array) -> Array:
    done = run(program, step, frames)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{frames.shape[1]} frames, 3 states, ")
    return np.fromfile(step.with_name("mask.f32"), np.float32).reshape(frames.shape)


@pytest.mark.environments("openvino")
def test_openvino_in_cpp(tmp_path: Path, frames: Array, mask: Array) -> None:
    step = tmp_path / "step.onnx"
    rl.lower_file(DENOISER, step, stream="time=1", dims={"batch": 1}, target="openvino", verify=0)
    asked = [str(python("openvino")), "-c", "import openvino.utils as u; print(u.get_cmake_path())"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    program = built("denoise_openvino", tmp_path / "build", OpenVINO_DIR=found)
    assert np.abs(masks(program, step, frames) - mask).max() < 1e-5
    assert run(program, tmp_path / "absent.onnx", frames).returncode == 1


@pytest.fixture
def onnxruntime_program(tmp_path: Path) -> Path:
    """The C program, with the library of the wheel, whose name lacks what a linker looks for."""
    include = next((folder for folder in HEADERS if folder and Path(folder, HEADER).exists()), None)
    if include is None:
        pytest.skip(NO_HEADER)
    (library,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (tmp_path / name).symlink_to(library)
    settings = {"ONNXRUNTIME_INCLUDE": include, "ONNXRUNTIME_LIBRARY": tmp_path / "libonnxruntime.so"}
    return built("denoise_onnxruntime", tmp_path / "build", CMAKE_C_FLAGS="-Wall -Wextra", **settings)


@pytest.mark.skipif(sys.platform != "linux", reason="the wheel has the library on Linux")
def test_onnxruntime_in_c(tmp_path: Path, frames: Array, mask: Array, onnxruntime_program: Path) -> None:
    step = tmp_path / "step.onnx"
    rl.lower_file(DENOISER, step, stream="time=1", dims={"batch": 1}, verify=0)
    assert np.abs(masks(onnxruntime_program, step, frames) - mask).max() < 1e-5
    whole = shutil.copy(DENOISER, tmp_path)
    done = run(onnxruntime_program, Path(whole), frames)
    assert (done.returncode, done.stderr) == (1, "an input has an open size: fix it with --set-dim\n")
