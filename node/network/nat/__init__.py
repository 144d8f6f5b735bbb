"""Being reached behind a router: relay places, hole punching, port mapping, and tests of all of it."""
