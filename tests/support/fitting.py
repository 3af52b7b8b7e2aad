"""Cases as a target supports them."""

import dataclasses

from cases import Case

import rnn_lowering as rl


def fitting(case: Case, target: str) -> Case:
    """Return a case with the batch size that a target supports, and with constant lengths where it needs them."""
    row = rl.TARGETS[target]
    if row.batch_size is not None:
        case = dataclasses.replace(case, N=row.batch_size, lengths=None)
    return case if row.sequence_lens else dataclasses.replace(case, lengths_from="initializer")
