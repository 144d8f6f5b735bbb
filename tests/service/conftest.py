"""Fixtures of the command line's own tests."""

from cli.conftest import command, home, logging_is_put_back

__all__ = ["command", "home", "logging_is_put_back"]
