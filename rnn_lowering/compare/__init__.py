"""Compare two models. Read `verify` first, the door of the folder.

Three modules compare: `whole` the outputs of both models, `node_by_node` each lowered node with float64, and
`streams/chunk_by_chunk` a stream with the original. `sizes` and `feeds` say on which inputs; `runs` runs models in
a child process; `float64` computes nodes and models as the specification has them; `judgement` says which outputs
count as equal, `rounding` what rounding explains; `proof` proves nodes on symbols.

What is compared is what the lowered file has, whoever wrote it: each node is cut out of its messages, not emitted
again. Only the equations of the references are independent of the lowering. Common to both is how files, nodes and
constants are read (`files`, `facts`, `nodes`), and how nodes are found, inlined and folded (`model`).

If onnxruntime cannot run the original of a stream, the original is lowered for whole sequences, and its nodes are
compared with their references.
"""
