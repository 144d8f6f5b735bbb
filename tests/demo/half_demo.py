"""`distro-node` with a demo that reads half of the sequences: it does all else that the demo does."""

from __future__ import annotations

from distro_node.node.cli.main import main
from distro_node.node.demo import plan

# No option: a user has no reason to wish for less.
plan._TOTAL_SEQUENCES //= 2

if __name__ == "__main__":
    main()
