"""Write the reference of the Python interface as HTML, from the docstrings; check that each public name is in it.

python docs/api_reference.py FOLDER    (needs `pip install "rnn-lowering[dev]"`)
"""

import sys
import warnings
from pathlib import Path

import pdoc

import rnn_lowering as rl


def main(folder: Path) -> int:
    """Write the pages; return 1 where a public name is missing or has no description."""
    for name in rl.__all__:  # pdoc sees what is in the module, not what it imports at first use
        setattr(rl, name, getattr(rl, name))
    warnings.simplefilter("ignore")  # annotations of other packages that are not imported at run time
    warnings.filterwarnings("error", message=".*does not resolve")
    pdoc.render.configure(docformat="google")
    pdoc.pdoc("rnn_lowering", "!rnn_lowering[.].+", output_directory=folder)
    page = (folder / "rnn_lowering.html").read_text(encoding="utf-8")
    missing = [name for name in rl.__all__ if f'id="{name}"' not in page]
    undescribed = [name for name in rl.__all__ if callable(getattr(rl, name)) and not getattr(rl, name).__doc__]
    for name in missing:
        print(f"{name} is not in the reference", file=sys.stderr)
    for name in undescribed:
        print(f"{name} has no docstring", file=sys.stderr)
    print(f"{folder / 'index.html'}: {len(rl.__all__) - len(missing)} of {len(rl.__all__)} public names")
    return int(bool(missing or undescribed))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
