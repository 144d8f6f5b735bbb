"""The results of a swarm: its model exported, tried, measured and verified."""
