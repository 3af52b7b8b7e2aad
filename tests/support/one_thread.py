"""NumPy's products run on one thread, here and in child processes. Import this before NumPy: with more, the tests
take a tenth more processor time, in which threads wait for each other."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
