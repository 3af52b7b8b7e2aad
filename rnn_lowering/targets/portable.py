"""The target of no runtime in particular, and where all others are looked up."""

from __future__ import annotations

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.targets.target import Target
from rnn_lowering.targets.traits import LoopTraits, StreamTraits

PORTABLE = Target(
    "portable",
    "",
    ("scan", "loop", "unroll"),
    streams=StreamTraits(growing_states=True),
    integer_products=True,
    loops=LoopTraits(
        # A shared loop took at most 1.01 of the time in every measured runtime. Unrolled steps stay apart: shared,
        # they take 1.06 to 1.13 of the time in TVM and IREE.
        dialect=Dialect(join_up_to=128, stack_up_to=128),
    ),
)


def target_named(name: str) -> Target:
    """Return the target of a name, ignoring case and punctuation.

    Raises:
        OptionError: There is none of this name.
    """
    if name == PORTABLE.name:
        return PORTABLE
    from rnn_lowering.targets.table import any_target_named  # the rows of all runtimes

    return any_target_named(name)
