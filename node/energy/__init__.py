"""Energy and cost of a node's work, and what pauses it: prices, other programs, people."""
