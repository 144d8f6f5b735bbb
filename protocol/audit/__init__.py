"""Audits: spot checks of members' work by recomputation, and the reputation that follows from them."""
