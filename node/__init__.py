"""Everything that touches the world: commands, the daemon, the network, disks, the trainer process.

The rules themselves live in `protocol`; this package feeds them time, bytes and randomness and carries
out the effects they return.
"""
