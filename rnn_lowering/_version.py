"""The version of the package, from its metadata."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("rnn-lowering")
except PackageNotFoundError:  # imported from a checkout that is not installed
    __version__ = "unknown"
