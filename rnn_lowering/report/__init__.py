"""The report as a file: JSON, or an HTML page with plots."""
