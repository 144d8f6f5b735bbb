"""The swarm's rules as pure state machines and pure codecs.

Nothing here opens a socket, reads a clock or draws a random number: time, randomness and bytes come
in as arguments and *effects* come out, so the daemon and a simulator run the very same classes.
"""
