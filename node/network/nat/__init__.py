"""Being reached behind a router: reservations at relays, hole punching, port mapping, tests of all."""
