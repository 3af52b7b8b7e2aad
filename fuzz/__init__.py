"""A search for models that are lowered wrongly: random models, an independent judge, and what it found made small.

The builders of graphs and the float64 equations come from tests/support.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in map(str, (ROOT / "tests", ROOT / "tests" / "support")) if path not in sys.path]
