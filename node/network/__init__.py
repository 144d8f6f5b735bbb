"""The libp2p network of a node: connections, requests, gossip, blobs and introductions.

Importing this package patches libp2p with the guards it needs (see `guards`) and takes its log output
into the program's own; nothing else in the program touches libp2p.
"""

from . import guards

guards.install()
