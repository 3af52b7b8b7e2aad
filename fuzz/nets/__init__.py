"""Random nets: rows of operators, and nets as engineers write them."""
