"""Open axes whose size an exporter fixed."""
