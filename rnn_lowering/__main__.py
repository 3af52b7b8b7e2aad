"""`python -m rnn_lowering` is `rnn-lower`."""

import sys

from rnn_lowering.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
