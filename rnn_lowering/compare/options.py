"""The options of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from rnn_lowering import argument_checks
from rnn_lowering.argument_checks import COMPARISON, LIMITS, with_keywords
from rnn_lowering.errors import OptionError
from rnn_lowering.limits import MOST_BYTES
from rnn_lowering.option_texts import with_attributes
from rnn_lowering.types import Array, PathLike, Shapes


@dataclass(frozen=True)
class Tolerance:
    """Values that count as equal: |a - b| <= atol + rtol * |a|; NaN equals NaN, infinity equals the same infinity.

    Without values, they depend on the element type: docs/verification.md has the table.

    Examples:
        >>> rl.verify(model, rl.lower(model), tolerance=rl.Tolerance(rtol=1e-3), runs=1).status
        'verified'
    """

    rtol: float | None = COMPARISON.option(
        "--rtol RTOL", "tolerance", None, "relative tolerance (default: by element type)"
    )
    atol: float | None = COMPARISON.option(
        "--atol ATOL", "tolerance", None, "absolute tolerance (default: by element type)"
    )

    __repr__ = argument_checks.changed_options

    def __post_init__(self) -> None:
        argument_checks.take_fields(self)


runs_of_check = argument_checks.integer(most=1_000_000)


@with_attributes
@dataclass(frozen=True)
class Check:
    """How two models are compared.

    Attributes:
        runs: The number of runs with random inputs; 0: no comparison. The sizes of dynamic dimensions change from
            run to run, and repeat after a few runs. Example: `runs=5`.
        seed: Seed of the random inputs. Example: `seed=1`.
        tolerance: Values that count as equal. Example: `tolerance=rl.Tolerance(rtol=1e-3)`.
        feeds: Inputs to compare with, one run each; inputs that you do not name are random. Example: `feeds=[{"X":
            np.zeros((16, 1, 80), np.float32)}]`.
        shapes: Shapes of the random inputs, by name. Example: `shapes={"X": [16, 1, 80]}`.
        timeout: Time limit in seconds for loading a model and for each run; it may be infinite. A slower model is
            not verified. Example: `timeout=600`.
        run_in_target: Whether the result also runs in the runtime of its target. Example: `run_in_target=True`.
        target_python: The Python that has this runtime; None: that of a variable such as RNN_LOWERING_TRACT_PYTHON,
            or this one. Example: `target_python="tract/bin/python"`.
        max_bytes: Maximum bytes of the inputs of a run. The process may use 16 times as much, plus the weights; a
            model that needs more is not verified. Example: `max_bytes=1 << 30`.

    Raises:
        OptionError: A negative number of runs or bytes, or a time limit that is not positive.

    Examples:
        >>> check = rl.Check(runs=1, shapes={"X": [16, 1, 80]})
        >>> rl.verify(model, rl.lower(model), check=check).status
        'verified'
    """

    runs: int = COMPARISON.option(
        "--verify N",
        "count",
        3,
        "number of comparison runs in onnxruntime (default: {default})",
        runs_of_check,
        keyword="verify",
    )
    seed: int = COMPARISON.option(
        "--seed SEED", "count", 0, "seed of the random inputs (default: {default})", keyword="seed"
    )
    tolerance: Tolerance = COMPARISON.option(
        "", "", Tolerance(), "", argument_checks.instance(Tolerance, "Tolerance(rtol=..., atol=...)")
    )
    feeds: Sequence[Mapping[str, Array]] | None = COMPARISON.option(
        "--test-input NAME=FILE.npy", "feed", None, "use this array as the input in the comparison"
    )
    shapes: Shapes | None = COMPARISON.option(
        "--test-shape NAME:D0,...",
        "shape",
        None,
        "use a random input of this shape in the comparison",
        argument_checks.optional(argument_checks.shapes),
    )
    timeout: float = COMPARISON.option(
        "--verify-timeout SECONDS",
        "seconds",
        120.0,
        "time limit for loading a model and for each run; a slower model is not verified (default: {default})",
    )
    run_in_target: bool = COMPARISON.option(
        "--run-in-target",
        "flag",
        False,
        "then run the result in the runtime of --target too, and compare; write nothing if it is wrong there",
        keyword="run_in_target",
    )
    target_python: PathLike | None = COMPARISON.option(
        "--target-python FILE",
        "file",
        None,
        "the Python that has this runtime (default: this one)",
        keyword="target_python",
    )
    max_bytes: int = LIMITS.option("", "bytes", MOST_BYTES, "")

    __repr__ = argument_checks.changed_options

    def __post_init__(self) -> None:
        argument_checks.take_fields(self)
        if self.run_in_target and not self.runs:
            raise OptionError(
                "a comparison in the target needs runs, but their number is 0", hint="drop --verify 0"
            )


class CheckOptions(TypedDict, total=False):
    """The attributes of `Check` as keywords."""

    runs: int | None
    seed: int | None
    tolerance: Tolerance | None
    feeds: Sequence[Mapping[str, Array]] | None
    shapes: Shapes | None
    timeout: float | None
    run_in_target: bool | None
    target_python: PathLike | None
    max_bytes: int | None


def check_of(given: Check | None, options: CheckOptions) -> Check:
    """Return a check from an object, with keywords.

    Raises:
        OptionError: As `Check`.
    """
    check = Check() if given is None else argument_checks.instance(Check, "Check(runs=...)")("check", given)
    return with_keywords(check, options)
