"""Reachability through a router: relay reservations, hole punching, port mapping, and tests of each."""
