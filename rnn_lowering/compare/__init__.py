"""Compare two models: start at `verify` and `stream`.

The equations in `references` are written on their own. Shared with the lowering: how files, nodes and constants are
read (`files`, `spec`) and how nodes are found, inlined and folded (`model`). For a stream whose original is not run
by onnxruntime, the original is lowered, and its nodes judged by `references`.
"""
