"""Loops and Scans that an exporter wrote: unrolled, converted into each other, or with less in their bodies.

A Loop or Scan is a recurrence: in each step its body maps the states and one row of each scanned input to the next
states and one row of each stacked output. `body` reads these states and rows, and `trips` finds the trip count.
`emptying` moves nodes that need no state out of the body. `unrolling` emits straight-line nodes, and `conversion`
turns a Loop into a Scan or a Scan into a Loop.
"""
