"""Everything on the disk: the data directory, blobs, and the stored state of each swarm."""
