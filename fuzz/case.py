"""A case of a search, and what the judge says of it."""

import json
import re
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import onnx

import rnn_lowering as rl

Options = dict[str, Any]
Result = TypeVar("Result")
PACKAGE = Path(rl.__file__).parent


@dataclass(frozen=True)
class Case:
    """A model, and what is done with it.

    Attributes:
        model: The model.
        options: Values that JSON has, as the kind understands them; they also have what inputs are made of.
    """

    model: onnx.ModelProto
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        kind: "agreed"; "refused", with a clear error; "invalid", if onnxruntime does not run the original; "fault".
        what: Why it was refused, or how it fails: equal for cases of one cause.
        detail: The whole message, or where the numbers differ.
        comparisons: The number of runs whose outputs were compared.
    """

    kind: Literal["agreed", "refused", "invalid", "fault"]
    what: str = ""
    detail: str = ""
    comparisons: int = 0

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))


def agreed(comparisons: int) -> Outcome:
    """Return the outcome of outputs that are equal in each comparison."""
    return Outcome("agreed", comparisons=comparisons)


def fault(what: str, detail: str = "", comparisons: int = 0) -> Outcome:
    """Return the outcome of a fault."""
    return Outcome("fault", what, detail, comparisons)


def attempt(call: Callable[[], Result]) -> Result | Outcome:
    """Return what the package returns, or the outcome if it raises: only a clear error is a refusal."""
    try:
        return call()
    except Exception as error:
        return raised(error)


def raised(error: Exception) -> Outcome:
    """Return the outcome of what the package raised."""
    text = " ".join(str(error).split())
    if isinstance(error, rl.RnnLoweringError) and not isinstance(error, rl.InternalError):
        if "please report" not in text:
            return Outcome("refused", reason(text), text[:1000])
        return fault(f"please report: {reason(text)}", text[:1000])
    cause = error.__cause__ or error
    return fault(f"{type(cause).__name__} in {_place(cause)}", " ".join(str(cause).split())[:1000])


def reason(message: str) -> str:
    """Return a message without the names and numbers of its model, and without what follows its first clause."""
    general = re.sub(r"(?<!\w)(['\"`]).*?\1(?!\w)|\[[^\]]*\]|\([^)]*\)", "_", message)
    return re.sub(r"-?\d+(?:\.\d+)?", "#", general)[:90].strip()


def _place(error: BaseException) -> str:
    """Return the module and the function of the package that raised an error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if PACKAGE in Path(frame.filename).parents] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "?"
