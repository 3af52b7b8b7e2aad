"""Run the command: `rnn-lower`, or `python -m rnn_lowering`."""

import gc
import logging
import os
import sys

from rnn_lowering.cli.signals import listen, open_closed
from rnn_lowering.libraries import load_late


def main() -> int:
    """Run the command with the arguments of the process; return its exit code."""
    listen()
    load_late()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of NumPy: its products are small, and threads would wait
    logging.getLogger().addHandler(logging.NullHandler())  # what libraries log is not for users of the command
    from rnn_lowering.cli import command  # imports that take time, now that signals are heard

    open_closed()
    try:
        return command.main()
    finally:
        gc.freeze()  # the interpreter, which ends now, need not look for cycles among all objects


if __name__ == "__main__":
    sys.exit(main())
