"""Where things are: the checkout, the package, the examples, and a folder of real models beside the checkout."""

from pathlib import Path

import rnn_lowering

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SHARED = ROOT.parent / "shared"
MODELS = SHARED / "models"
PACKAGE = Path(rnn_lowering.__file__).resolve().parent
"""The package under test."""
SRC = PACKAGE.parent
"""What is on the path where it is imported."""
