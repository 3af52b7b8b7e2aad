"""The selection of the recurrent nodes to lower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx_ir as ir

from rnn_lowering.errors import OptionError, callers
from rnn_lowering.model.scopes import Found
from rnn_lowering.options import Selection


@dataclass(frozen=True)
class Choose:
    """Selects nodes by `Lowering.only` and `Lowering.except_`."""

    only: Selection
    except_: Selection

    def __call__(self, found: Sequence[Found]) -> list[Found]:
        """Return the nodes that are to be lowered."""
        anything = self.only == ()
        wanted = (e for e in found if anything or _matches(e.node, self.only))
        return [e for e in wanted if not _matches(e.node, self.except_)]

    def check(self, found: Sequence[Found]) -> None:
        """Check that every pattern matches a node, if there are any.

        Raises:
            OptionError: A pattern matches none.
        """
        unknown = [p for p in (*_patterns(self.only), *_patterns(self.except_)) if not _known(p, found)]
        if unknown and found:
            names = ", ".join(dict.fromkeys(f"{e.node.op_type} '{e.node.name or ''}'" for e in found))
            raise OptionError(
                f"no recurrent node matches {', '.join(repr(p) for p in unknown)}", hint=f"there are {names}"
            )


def _patterns(selection: Selection) -> Iterator[str]:
    if isinstance(selection, tuple):
        yield from selection


def _known(pattern: str, found: Sequence[Found]) -> bool:
    return any(_matches(entry.node, (pattern,)) for entry in found)


def _matches(node: ir.Node, selection: Selection) -> bool:
    if callable(selection):
        return bool(callers(selection)(node))
    return any(p == node.op_type or fnmatchcase(node.name or "", p) for p in selection)
