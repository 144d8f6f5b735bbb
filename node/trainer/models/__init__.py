"""Models: built from a configuration, read from a checkpoint, exported."""
