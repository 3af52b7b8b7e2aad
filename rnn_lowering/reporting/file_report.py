"""What was done to the model of a file, and how it was verified."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rnn_lowering.passes.report import Report
from rnn_lowering.verification.result import Verification


@dataclass(frozen=True)
class ModelFile:
    """A model file: its name without the folder, and its bytes, files of external data included."""

    name: str
    bytes: int

    @classmethod
    def of(cls, path: Path, data: Iterable[Path]) -> ModelFile:
        return cls(path.name, sum(file.stat().st_size for file in {path, *data}))


@dataclass(kw_only=True)
class FileReport(Report):
    """What a lowering of a file did.

    Attributes:
        original, lowered: The model files.
        verification: How both were compared; None where nothing was to be.
    """

    original: ModelFile
    lowered: ModelFile
    verification: Verification | None = None

    @classmethod
    def of(cls, report: Report, original: ModelFile, lowered: ModelFile) -> FileReport:
        """Return the report of the pass as one of files."""
        return cls(**vars(report), original=original, lowered=lowered)

    def to_dict(self) -> dict[str, Any]:
        files = {"before": vars(self.original), "after": vars(self.lowered)}
        verification = None if self.verification is None else self.verification.to_dict()
        return super().to_dict() | {"files": files, "verification": verification}
