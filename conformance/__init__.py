"""The conformance suite: models with one feature of a recurrent operator each, and how runtimes run them.

The cases and the float64 equations come from tests/support.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in map(str, (ROOT / "tests", ROOT / "tests" / "support")) if path not in sys.path]
