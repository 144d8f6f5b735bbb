"""The only exception that bytes from a peer may cause."""


class ProtocolError(Exception):
    """Violation of the protocol by a peer.

    Every decoder and checker in this package either returns a value or raises this, whatever the input.
    The violation is counted against the peer and never ends the node.

    `reason` is a short identifier from a fixed set, suitable as a metric label; the message is for
    people.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
