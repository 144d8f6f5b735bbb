"""The optimizer: local update, shared step, fingerprint and differential privacy."""
