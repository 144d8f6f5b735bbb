"""The libp2p network of a node: connections, requests, gossip, blobs and introductions.

Importing this package patches libp2p (see `library_patches`) and routes its log output into the
program's own. Nothing else in the program uses libp2p.
"""

from . import library_patches

library_patches.install()
