"""What comes out of a swarm: its model written to a directory, tried, measured and checked."""
