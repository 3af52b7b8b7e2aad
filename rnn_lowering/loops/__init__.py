"""Loops and Scans that an exporter wrote, as recurrences: unrolled, converted, or with less in their bodies."""
