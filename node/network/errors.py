"""Network errors, each with a reason for people or for a metric label."""

from __future__ import annotations

from typing import Literal

RequestFailure = Literal[
    "timeout", "refused", "busy", "oversized", "closed", "not_connected", "failed"
]


class PortInUse(Exception):
    """Another program listens on `address` already."""

    def __init__(self, address: str) -> None:
        super().__init__(f"another program already listens on {address}")
        self.address = address


class BadAddress(ValueError):
    """`text` is not a multiaddress that can be used here; `why` is the reason."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"{text!r}: {why}")
        self.text = text
        self.why = why


class AddressMissing(BadAddress):
    """This machine does not have the address to listen on, or not yet."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "this machine has no such address")


class DialError(Exception):
    """A connection to `address` failed; `reason` is a phrase for people, such as "connection
    refused"."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class NotHere(Exception):
    """Raised by a handler if this node does not have what was requested, and the request is no
    offence."""


class RequestError(Exception):
    """A request failed.

    `reason` is `timeout` (too slow, or silent for too long), `refused` (the peer does not serve this
    protocol, does not have what is asked for, or replies that the request is invalid), `busy` (try
    another peer, or later), `oversized` (the answer is longer than allowed), `closed` (the connection or
    stream broke), `not_connected`, or `failed` (the peer reports an error of its own).
    """

    def __init__(self, reason: RequestFailure, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason: RequestFailure = reason
