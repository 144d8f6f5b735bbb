"""All that a node takes from its user: `setting` (the mechanism), `values`, `components`, `tree`."""
