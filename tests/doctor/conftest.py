"""Fixtures shared with the tests of the command line."""

from cli.conftest import command, home, logging_is_put_back

__all__ = ["command", "home", "logging_is_put_back"]
