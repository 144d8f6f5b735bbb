"""Memory of a training session: optimizer state and model shards."""
