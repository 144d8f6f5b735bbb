"""What the owner says and sees: commands to a running node, signals, hours of work, the screen."""
