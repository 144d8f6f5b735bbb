"""Helpers that all of node/ shares and that know nothing of swarms."""
