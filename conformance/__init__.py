"""Models with one feature of ONNX's recurrent operators each, and what runtimes make of them.

Feature tables live here; the cases and the float64 equations are those of tests/support.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in map(str, (ROOT / "tests", ROOT / "tests" / "support")) if path not in sys.path]
