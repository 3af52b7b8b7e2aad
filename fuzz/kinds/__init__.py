"""The kinds of search: each module generates cases and judges them.

A kind has `CASES`, the number that takes five to ten seconds, `generate(rng)`, which makes a case from random
numbers and nothing else, and `judge(case)`, which must depend on the case alone: a found one is judged again while
it is made smaller.
"""

NAMES = (
    *("streams", "lowering", "loops", "raising", "attention", "joined", "verify", "files"),
    *("calibration", "halves", "data_files", "exported", "open", "proof"),
)
