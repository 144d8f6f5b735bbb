"""Small pure data structures that the rest of protocol/ shares: rate limits, backoff, bounded tables."""
