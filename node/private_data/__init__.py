"""A member's own files in a swarm of private data: read and trained on here, and sent to no peer."""
