"""How peers of a swarm find each other: signed introductions, and multicast DNS in a local network."""
