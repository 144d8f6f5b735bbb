"""Small pure data structures that the rest of protocol/ shares: limits, pauses, bounded tables."""
