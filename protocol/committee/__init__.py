"""Committees: sign votes, their sums by section, and the draw of the members that compute these."""
