"""Energy that a node's GPUs draw, and what pauses a node: a command, other programs, people."""
