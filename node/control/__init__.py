"""The owner's interface to a node: commands to a running one, signals, hours of work, the screen."""
