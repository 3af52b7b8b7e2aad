"""Loops that an exporter traced step by step, made Scans again."""
