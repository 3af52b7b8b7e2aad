"""The report file: JSON, or an HTML page with plots."""
