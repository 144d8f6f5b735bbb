"""A member's own files in a swarm with private data: read, trained on, and sent to no peer."""
