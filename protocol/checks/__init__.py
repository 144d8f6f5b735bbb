"""Checked work: what a look at somebody's update says, and what several looks say together."""
