"""The optimizer: local update, exact step, fingerprint and differential privacy."""
