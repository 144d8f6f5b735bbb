"""The chain of decided records: consensus on each record, its proof, and fork choice."""
