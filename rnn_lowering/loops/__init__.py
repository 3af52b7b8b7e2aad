"""Lower Loops and Scans that an exporter wrote: unroll them, convert them, or make their bodies shorter."""
