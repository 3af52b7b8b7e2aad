"""The boundary of the package: public functions return a result or raise an `RnnLoweringError`, nothing else."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn, ParamSpec, TypeVar

from rnn_lowering.errors import (
    InternalError,
    ModelFileError,
    NodeRef,
    RnnLoweringError,
    RnnLoweringWarning,
    UnsupportedError,
)
from rnn_lowering.printable import printable

P = ParamSpec("P")
R = TypeVar("R")


_inside: ContextVar[bool] = ContextVar("inside", default=False)
"""Whether a boundary is around this one."""


class _PassedError(BaseException):
    """Carries an exception of a function that the caller gave past all handlers to the boundary."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(error)


@contextmanager
def boundary(node: NodeRef | None = None) -> Iterator[None]:
    """Turn any unexpected exception of the block into an `RnnLoweringError`. Exceptions: KeyboardInterrupt and
    SystemExit, errors of functions wrapped by `callers`, and warnings that the caller has turned into errors.

    Args:
        node: The recurrent node that the block is about.

    Raises:
        ModelFileError: The system refuses a file.
        UnsupportedError: Not enough memory, or a model that is nested too deeply.
        InternalError: Anything else; the exception is its cause.
    """
    token = _inside.set(True)
    try:
        yield
    except (RnnLoweringError, RnnLoweringWarning):
        raise
    except _PassedError as passed:
        if token.old_value is True:
            raise
        raise passed.error from passed.error.__cause__
    except Exception as error:
        _raise(error, node)
    finally:
        _inside.reset(token)


def callers(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function that the caller gave so that its exceptions pass all boundaries unchanged."""

    def passing(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise _PassedError(error) from error

    return passing


def _raise(error: Exception, node: NodeRef | None) -> NoReturn:
    if isinstance(error, OSError):
        what, hint = f"'{error.filename}'" if error.filename else "the system refuses", ""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            what = f"cannot open {what if error.filename else 'another file or process'}"
            hint = "raise the limit of open files (ulimit -n)"
        raise ModelFileError(f"{what}: {error.strerror or error}", hint=hint, node=node) from error
    if isinstance(error, MemoryError):
        raise UnsupportedError(
            "there is not enough memory", hint="use smaller sizes, or more memory", node=node
        ) from error
    if isinstance(error, RecursionError):
        raise UnsupportedError(
            "the model is nested too deeply", hint="use fewer levels of subgraphs and functions", node=node
        ) from error
    text = printable(" ".join(str(error).split()), 300)
    raise InternalError(
        f"{type(error).__name__}: {text}" if text else type(error).__name__,
        hint="this is a fault of rnn-lowering: please report it with the model (-vv shows the traceback)",
        node=node,
    ) from error
