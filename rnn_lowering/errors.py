"""The errors and the warning of this package: public functions return a result or raise an `RnnLoweringError`."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn, ParamSpec, TypeVar

from rnn_lowering.flags import is_for_command, spelled

SIZES = "getting-started.md#sizes-and-inputs"
"""The section of docs/ about unknown sizes."""


def documentation(page: str) -> str:
    """Return the address of a page or section of docs/; "" if the installed package names no documentation."""
    from importlib import metadata  # takes time

    with suppress(metadata.PackageNotFoundError):
        for entry in metadata.metadata("rnn-lowering").get_all("Project-URL") or ():
            label, _, address = entry.partition(", ")
            if label == "Documentation" and page:
                name, mark, section = page.partition("#")
                return f"{address.rstrip('/')}/{name.removesuffix('.md')}/{mark}{section}"
    return ""


def page_named(page: str) -> str:
    """Return the address of a page of docs/; its place in the repository if the package names no documentation."""
    return documentation(page) or f"docs/{page} of the repository"


def version() -> str:
    """Return the version of the package; "unknown" in a checkout that is not installed."""
    from importlib import metadata  # takes time

    try:
        return metadata.version("rnn-lowering")
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class NodeRef:
    """A node in an error: its name (or its first output's), its operator and the scope that it is in.

    Control characters are escaped in its text.
    """

    name: str
    operator: str
    scope: str

    def __str__(self) -> str:
        name, scope = printable(self.name, NAME), printable(self.scope, 2 * NAME)
        return f"{printable(self.operator, NAME)} node '{name}' in {scope}"


class RnnLoweringError(Exception):
    """Base of every error that this package raises for a model, a file or an option.

    Its text is one printable line; `reason` and `hint` have names as they are in the model. It can be pickled.

    Args:
        reason: What is wrong.
        hint: What to try. Options are keywords of Python, or flags if the command runs.
        node: The node, if the error is about one.

    Attributes:
        page: The section of docs/ about such errors; "" if there is none.

    Examples:
        >>> try:
        ...     rl.lower(model, "unroll")
        ... except rl.RnnLoweringError as error:
        ...     print(error.reason)
        the sequence length is not known, so the steps cannot be unrolled
    """

    page = ""

    def __init__(self, reason: str, *, hint: str = "", node: NodeRef | None = None) -> None:
        super().__init__()
        self.reason = reason
        self.node = node
        self.advise(hint)

    def advise(self, *hints: str) -> None:
        """Set the hint to these texts, without empty ones."""
        self.hint = spelled(", or ".join(filter(None, hints)))
        text = f"{self.node}: {printable(self.reason)}" if self.node else printable(self.reason)
        self.args = (f"{text}; {printable(self.hint)}" if self.hint else text,)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.args), vars(self)


E = TypeVar("E", bound=RnnLoweringError)


def _unpickled(cls: type[E], args: tuple[Any, ...]) -> E:
    error = cls.__new__(cls)
    error.args = args
    return error


@contextmanager
def documented(page: str) -> Iterator[None]:
    """Let an `UnsupportedError` of the block about a node name a section of docs/, if it names none."""
    try:
        yield
    except UnsupportedError as error:
        if error.node is not None:
            error.page = error.page or page
        raise


class InvalidNodeError(RnnLoweringError):
    """A node breaks the specification of its operator.

    Examples:
        >>> text = (
        ...     '<ir_version: 8, opset_import: ["": 17]>'
        ...     " g (float[T,1,2] X, float[1,16,2] W, float[1,16,4] R) => (float[T,1,1,4] Y)"
        ...     " { Y = LSTM <hidden_size = 4, clip = -1.0> (X, W, R) }"
        ... )
        >>> try:
        ...     rl.lower(onnx.parser.parse_model(text))
        ... except rl.InvalidNodeError as error:
        ...     print(error.reason)
        clip is -1
    """


class UnsupportedError(RnnLoweringError):
    """A valid model, node or option that this package, the form or the target does not support.

    Examples:
        >>> try:
        ...     rl.lower(model, "scan", target="tinygrad")
        ... except rl.UnsupportedError as error:
        ...     print(error.hint)
        use to="unroll"
    """


class UnknownSizeError(UnsupportedError):
    """A form or target needs sizes of a node that do not follow from the model.

    Args:
        sizes: Which of T and N.

    Examples:
        >>> try:
        ...     rl.lower(model, "unroll")
        ... except rl.UnknownSizeError as error:
        ...     print(error.sizes)
        ('T',)
    """

    page = SIZES

    def __init__(self, reason: str, *, hint: str = "", node: NodeRef | None = None, sizes: tuple[str, ...]) -> None:
        self.sizes, self.options, self.otherwise = sizes, tuple[str, ...](), hint
        super().__init__(reason, hint=hint, node=node)

    def advise_options(self, options: Iterable[str], otherwise: str) -> None:
        """Let the hint name the options that fix sizes, with ? for a size that the user fills in, or others."""
        self.options, self.otherwise = tuple(dict.fromkeys(options)), otherwise
        text = " ".join(self.options)
        filled = ", with a number for each ?" if "?" in text else ""
        self.advise(f"fix the sizes of the inputs{filled}: {text}" if text else "", otherwise)


class UnknownLengthsError(UnsupportedError):
    """A form or target needs sequence_lens that are known before run time.

    Examples:
        >>> issubclass(rl.UnknownLengthsError, rl.UnsupportedError)
        True
    """

    page = SIZES


class UnknownTripsError(UnsupportedError):
    """The number of steps of an exported Loop is not known before it runs.

    Args:
        value: The `onnx_ir.Value` that it follows from, which is not pickled; None if that is in the body.

    Examples:
        >>> issubclass(rl.UnknownTripsError, rl.UnsupportedError)
        True
    """

    def __init__(self, reason: str, *, hint: str = "", node: NodeRef | None = None, value: Any = None) -> None:
        self.value = value
        super().__init__(reason, hint=hint, node=node)

    def __reduce__(self) -> tuple[Any, ...]:
        make, args, state = super().__reduce__()
        return make, args, {**state, "value": None}


class OptionError(UnsupportedError, ValueError, TypeError):
    """An argument has a wrong value or type.

    Examples:
        >>> try:
        ...     rl.lower(model, target="abacus")
        ... except rl.OptionError as error:
        ...     print(error.reason)
        target 'abacus' does not exist
    """


class ModelFileError(RnnLoweringError, OSError):
    """A file that cannot be read as an ONNX model, or cannot be written; an OSError too.

    Examples:
        >>> try:
        ...     rl.inspect("absent.onnx")
        ... except rl.ModelFileError as error:
        ...     print(error)
        cannot read 'absent.onnx': No such file or directory
    """


class InternalError(RnnLoweringError):
    """A bug in this package; `__cause__` is the unexpected exception.

    Examples:
        >>> issubclass(rl.InternalError, rl.RnnLoweringError)
        True
    """


class VerificationError(RnnLoweringError):
    """The lowered model differs from the original, and was not written.

    Args:
        report: The `FileReport`, with the differences of the outputs.

    Examples:
        >>> issubclass(rl.VerificationError, rl.RnnLoweringError)
        True
    """

    page = "verification.md#when-it-fails"

    def __init__(self, reason: str, *, hint: str = "", report: Any = None) -> None:
        self.report = report
        super().__init__(reason, hint=hint)


class NotVerifiedError(VerificationError):
    """Verification was required, but no comparison was possible, and the lowered model was not written.

    Examples:
        >>> issubclass(rl.NotVerifiedError, rl.RnnLoweringError)
        True
    """

    page = "verification.md#why-does-it-say-not-verified"


class RnnLoweringWarning(UserWarning):
    """A node is ambiguous, and the message says how it was read; or a request is probably a mistake, or takes long.

    Examples:
        >>> import warnings
        >>> warnings.simplefilter("error", rl.RnnLoweringWarning)  # a warning is an error
    """


class UnfinishedWarning(RnnLoweringWarning):
    """A model is written, although a limit of time or memory ended its comparison."""


def deepest_cause(error: BaseException) -> BaseException:
    """Return the first error of a chain: libraries add one at each level of a model; onnx_ir may fail to do so."""
    while (before := error.__cause__ or (error.__context__ if isinstance(error, TypeError) else None)) is not None:
        error = before
    return error


_INNER = ("rnn_lowering", "onnx_ir")


def warn(text: str, kind: type[RnnLoweringWarning] = RnnLoweringWarning) -> None:
    """Issue a warning at the line of the caller outside this package and onnx_ir."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(spelled(text), kind, stacklevel=level)


NAME, LINE = 120, 800
"""Maximum characters shown of a name, and of a line; the middle of a longer one is left out."""


def counted(number: int | Fraction, noun: str) -> str:
    """Return "1 frame", "2 frames"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: object, most: int = LINE) -> str:
    """Return text as one line. Control characters, line ends, marks that change the direction of writing and lone
    surrogates are escaped. If it has more than `most` characters, the middle is left out.
    """
    whole = str(text)
    if len(whole) <= most:
        return _escaped(whole)
    left_out = f"...({len(whole) - most:,} characters)..."
    return _escaped(whole[: most - most // 3]) + left_out + _escaped(whole[len(whole) - most // 3 :])


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


P = ParamSpec("P")
R = TypeVar("R")

_inside: ContextVar[bool] = ContextVar("inside", default=False)
"""Whether a boundary is around this code."""


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
        raise UnsupportedError("not enough memory", hint="use smaller sizes, or more memory", node=node) from error
    if isinstance(error, RecursionError):
        raise UnsupportedError(
            "the model is nested too deeply", hint="use fewer levels of subgraphs and functions", node=node
        ) from error
    text = printable(" ".join(str(error).split()), 300)
    raise InternalError(
        f"{type(error).__name__}: {text}" if text else type(error).__name__,
        hint=f"this is a bug in rnn-lowering {version()}: please report it with the model"
        + " (-vv: the traceback)" * is_for_command(),
        node=node,
    ) from error
