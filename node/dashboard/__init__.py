"""The node's page: what it does, what it has added and what the swarm has learned, in a browser."""
