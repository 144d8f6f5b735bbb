"""distro-node: train large models together over home internet connections.

The repository root is this package. Its rooms are `crypto` (keys, signatures, hashes), `protocol`
(the swarm's rules as pure state machines) and `node` (everything that touches the world); imports
point from `node` to `protocol` to `crypto` and never back.
"""

__version__ = "0.2.0"
