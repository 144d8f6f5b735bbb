"""Codec of updates and committee messages, and the exact arithmetic of the shared step."""
