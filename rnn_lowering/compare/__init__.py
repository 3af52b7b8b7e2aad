"""Compare two models. Read `verify` first, the front door, then what it compares:

`whole`: both models run on the same inputs (`feeds`); outputs are judged by `tolerance`.
`nodes`: each lowered node is cut out and judged by float64.
`streams`: a stream runs chunk by chunk, the original on whole sequences.

`runner` runs models in a child process. `references` has each kind of nodes in float64. `coverage` says what a
comparison cannot show, `result` what it found.

The equations in `references` are written on their own. Shared with the lowering: how files, nodes and constants are
read (`files`, `spec`) and how nodes are found, inlined and folded (`model`). For a stream whose original is not run
by onnxruntime, the original is lowered, and its nodes judged by `references`.
"""
