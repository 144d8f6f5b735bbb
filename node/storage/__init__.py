"""What lies on the disk: the data directory, blobs, and what a node remembers of a swarm."""
