"""Loops and Scans that an exporter wrote: unrolled, converted into each other, or with less in their bodies."""
