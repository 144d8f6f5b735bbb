"""The one error that a peer's bytes may cause."""


class ProtocolError(Exception):
    """Violation of the protocol by a peer.

    Every decoder and checker in this package either returns a value or raises this, whatever the input.
    It is the peer's fault: it is counted against the peer and never ends the node.

    `reason` is a short identifier out of a fixed set, fit for a metric label; the message is for people.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
