"""The process that generates and judges cases: a crash or a hang ends it, and the search goes on."""

import importlib
import json
import logging
import random
import sys
import time
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import onnx
import pytest
from one_process import keep_processes

from fuzz.case import Case, Outcome, fault, raised
from rnn_lowering.child import Message, serve

MEMORY = 6 << 30
"""The most bytes that a case may take."""


def kind_of(module: str) -> Any:
    """Return the module of a kind by its name, or any module by its whole name."""
    return importlib.import_module(module if "." in module else f"fuzz.kinds.{module}")


def case_of(kind: ModuleType, seed: int, number: int) -> Case:
    """Return the case of a seed and a number."""
    case: Case = kind.generate(random.Random(f"{seed}/{number}"))
    return case


def judged(kind: Any, case: Case) -> Outcome:
    """Return what the judge says; what it raises is a fault."""
    try:
        outcome: Outcome = kind.judge(case)
    except Exception as error:
        return raised(error)
    return outcome


def do(job: Message) -> Iterator[Message]:
    """Judge a case that is sent, or that of a seed and a number; a found one is sent back."""
    kind, started = kind_of(job["kind"]), time.process_time()
    if "options" in job:
        case = Case(onnx.ModelProto.FromString(job["payload"]), job["options"])
    else:
        try:
            case = case_of(kind, job["seed"], job["number"])
        except Exception as error:
            found = fault("no case", f"{type(error).__name__}: {error}")
            yield {"outcome": found.text(), "seconds": time.process_time() - started}
            return
        yield {"options": json.dumps(case.options), "payload": case.model.SerializeToString()}
    outcome = judged(kind, case)
    yield {"outcome": outcome.text(), "seconds": time.process_time() - started}


def _prepare() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    keep_processes(pytest.MonkeyPatch())
    warnings.simplefilter("ignore")
    logging.disable()


if __name__ == "__main__":
    serve(do, _prepare)
