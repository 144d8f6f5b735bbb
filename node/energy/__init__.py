"""What a node's work costs in energy and money, and what holds it back: prices, others."""
