"""What is made of models that are computed, refused, that end the process or never end, and of absent clients."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clients import environments
from clients.driving import judge
from clients.environments import PACKAGED

DRIVER = f"""
import sys; sys.path.insert(0, {str(PACKAGED)!r})
import os, time
from jobs import main

def run(model, feed, names):
    deed = names[0]
    if deed == "raise":
        raise ValueError("no such operator")
    if deed == "abort":
        print("last words", flush=True)
        os.abort()
    if deed == "leave":
        os._exit(3)
    if deed == "sleep":
        time.sleep(600)
    return {{deed: feed["X"] + 1}}

main(run)
"""


def test_every_end_of_a_job_is_told(tmp_path: Path) -> None:
    for deed in ("Y", "abort", "leave", "raise", "sleep"):
        (tmp_path / "jobs" / deed).mkdir(parents=True)
        np.savez(tmp_path / "jobs" / deed / "feed.npz", X=np.zeros(2))
        (tmp_path / "jobs" / deed / "outputs.txt").write_text(deed)
    (tmp_path / "driver.py").write_text(DRIVER)
    subprocess.run([sys.executable, tmp_path / "driver.py", tmp_path / "jobs", "3"], check=True, timeout=60)
    said = {path.parent.name: path.read_text() for path in tmp_path.glob("jobs/*/error.txt")}
    assert said == {
        "abort": "crashes: signal 6: last words",
        "leave": "crashes: exit code 3: ",
        "raise": "rejects: ValueError: no such operator",
        "sleep": "crashes: not done after 3 s",
    }
    with np.load(tmp_path / "jobs" / "Y" / "result.npz") as held:
        np.testing.assert_array_equal(held["Y"], [1, 1])


def test_an_outcome_is_judged_by_its_numbers_and_shape() -> None:
    expected = {"Y": np.ones((2, 3), np.float32)}
    assert judge({"Y": np.full((2, 3), 1 + 1e-6, np.float32)}, expected) == ("right", "")
    assert judge({"Y": np.full((2, 3), 1.001, np.float32)}, expected)[0] == "wrong"
    assert judge({"Y": np.full((2, 3), np.nan, np.float32)}, expected)[0] == "wrong"
    assert judge({"Y": np.ones((1, 2, 3), np.float32)}, expected)[0] == "wrong"
    assert judge({}, expected)[0] == "wrong"
    assert judge("rejects: ValueError: no", expected) == ("rejects", "ValueError: no")


def test_an_environment_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "ROOT", tmp_path / "made")
    monkeypatch.setattr(environments, "HERE", tmp_path)
    (tmp_path / "tract.txt").write_text(f"tract @ {(tmp_path / 'absent.whl').as_uri()}\n# tract==1\n")
    assert "python -m clients.environments tract" in str(environments.why_absent("tract"))
    assert environments.main(["tract"]) == 1
    reason = str(environments.why_absent("tract"))
    assert reason.startswith("tract could not be installed: ERROR")
    assert "absent.whl" in reason


def test_a_name_that_is_no_client_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of it would be skipped for ever, with a command that cannot help."""
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    (tmp_path / "misspelt.failed").touch()
    for name in ("misspelt", "trakt"):
        with pytest.raises(FileNotFoundError):
            environments.why_absent(name)
    assert [environments.why_absent(tool) for tool in environments.OF_ONNXRUNTIME] == [None, None, None]


def test_a_package_of_npm_without_npm_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = f"onnxruntime-web@{environments.version('onnxruntime-web')}"
    assert environments.of_npm("onnxruntime-web") == [library]
    assert environments.of_npm("webnn") == [library, "@sparticuz/chromium@153.0.0"]
    assert environments.of_npm("tract") == []
    monkeypatch.setattr(environments, "ROOT", tmp_path / "made")
    monkeypatch.setattr(environments, "HERE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "onnxruntime-web.txt").write_text("# npm: onnxruntime-web==1\n")
    reason = str(environments.make("onnxruntime-web"))
    assert reason.startswith("onnxruntime-web could not be installed: ")
    assert "npm" in reason


def test_an_environment_is_of_its_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "ROOT", tmp_path / "made")
    monkeypatch.setattr(environments, "HERE", tmp_path)
    (tmp_path / "tract.txt").write_text("# tract==1: nothing to install\n")
    assert environments.make("tract") is None
    marker = environments.python("tract").parent / "marker"
    marker.touch()
    assert environments.make("tract") is None
    assert marker.exists()
    (tmp_path / "tract.txt").write_text("# tract==2: nothing to install\n")
    assert environments.why_absent("tract") is not None
    assert environments.make("tract") is None
    assert not marker.exists()


def test_a_client_of_another_python_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "ROOT", tmp_path / "made")
    monkeypatch.setattr(environments, "HERE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    (tmp_path / "tract.txt").write_text("# python: 3.98 3.99\n# tract==1\n")
    assert (
        environments.make("tract") == "tract could not be installed: it needs Python 3.98 or 3.99, and none is here"
    )
    found = tmp_path / "python3.99"
    found.symlink_to(sys.executable)
    assert environments.base_of("tract") == str(found)
    (tmp_path / "tract.txt").write_text(f"# python: {sys.version_info[0]}.{sys.version_info[1]}\n")
    assert environments.base_of("tract") == sys.executable
