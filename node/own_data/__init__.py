"""A member's own files in a swarm of private data: read here, trained on here, and told to nobody."""
