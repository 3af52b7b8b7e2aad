"""Which forms the node of a case can have, which of them onnxruntime runs, and cases that a target supports."""

import dataclasses

from cases import Case

import rnn_lowering as rl

RESULT_OF_OLD_OPSETS = 13


def emitted_opset(opset: int) -> int:
    return opset if opset >= 7 else RESULT_OF_OLD_OPSETS


def has_no_steps_to_repeat(case: Case) -> bool:
    return (case.knows_length and case.T <= 1) or (case.knows_batch and case.N == 0)


def exists(case: Case, form: str, opset: int) -> bool:
    """Whether the node of a case can take a form at an opset."""
    has_where_and_scan = emitted_opset(opset) >= 9
    if form == "scan":
        return has_where_and_scan
    if form == "unroll":
        sizes_known = has_where_and_scan or case.knows_batch or "sequence_lens" not in case.inputs
        return case.knows_length and sizes_known
    return True


def runs(case: Case, form: str, opset: int) -> bool:
    """Whether onnxruntime can run the lowered model."""
    if case.dtype == "bfloat16" or (form == "scan" and case.T == 0 and not case.knows_length):
        return False
    return exists(case, form, opset)


def fitting(case: Case, target: str) -> Case:
    """Return a case with the batch size that a target supports, and with constant lengths where it needs them."""
    row = rl.TARGETS[target]
    if row.batch_size is not None:
        case = dataclasses.replace(case, N=row.batch_size, lengths=None)
    return case if row.sequence_lens else dataclasses.replace(case, lengths_from="initializer")
