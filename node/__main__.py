"""`python -m distro_node.node` is the command `distro-node`."""

from .cli import main

if __name__ == "__main__":
    main()
