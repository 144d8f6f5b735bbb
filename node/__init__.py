"""Everything that does I/O: commands, the daemon, the network, disks, the trainer process.

The rules live in `protocol`. This package passes them time, bytes and randomness, and carries out the
effects that they return.
"""
