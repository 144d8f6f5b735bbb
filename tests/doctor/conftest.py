"""The fixtures of the command line's own tests."""

from cli.conftest import command, home, logging_as_it_was

__all__ = ["command", "home", "logging_as_it_was"]
