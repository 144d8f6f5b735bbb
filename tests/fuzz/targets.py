"""The fuzz targets: a target is something that takes a stranger's bytes, and the errors it may raise.

`targets` returns all of them by name. `covers` has the decoders or served protocols that each stands
for; a test compares these with the source (`inventory`). `attempt` is the whole claim: an input
gives a value or one of the errors that the target names, in less than `LIMIT_SECONDS` of CPU time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
from distro_node.protocol.wire.errors import ProtocolError
from simulation.hostile import hostile, mutate_bytes

LIMIT_SECONDS = 0.05
"""CPU time for one input, as the least of `_REPEATS`: how long a handler may block others."""

_REPEATS = 7


@dataclass(frozen=True)
class Target:
    """`run` takes any bytes and raises nothing but what is `allowed`."""

    name: str
    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    """Roughly what an honest peer sends; the other inputs are mutations of these."""
    covers: tuple[str, ...]
    """Decoders, as `module:function`, and protocols; anything without a name of its own is described."""
    allowed: tuple[type[Exception], ...] = (ProtocolError,)
    most: int = 4096
    """The longest input in bytes; at most the handler's own bound."""
    structured: bool = True
    """Whether inputs are MessagePack, so that values can be changed as well as bytes."""


class Finding(AssertionError):
    """An input with a forbidden effect."""


def attempt(target: Target, data: bytes) -> tuple[bool, float]:
    """Return whether an input gave a value, and its CPU time in seconds. Raises `Finding`."""
    begun = time.process_time()
    try:
        target.run(data)
        valid = True
    except target.allowed:
        valid = False
    except Exception as error:
        raise Finding(f"{target.name}: {type(error).__name__}: {error}") from error
    return valid, time.process_time() - begun


def seconds_of(target: Target, data: bytes) -> float:
    """Return the least time of several attempts, since other load only adds to it. Raises `Finding`."""
    return min(attempt(target, data)[1] for _ in range(_REPEATS))


def mutated(target: Target, data: bytes, chance: random.Random) -> bytes:
    """Return another input made from one, by changing its bytes or its values."""
    if not target.structured:
        return mutate_bytes(data, chance)[: target.most]
    try:
        return hostile(data, chance)[: target.most]
    except (ValueError, RecursionError, TypeError, OverflowError, msgpack.UnpackException):
        # It was not MessagePack, or became something that MessagePack cannot encode.
        return mutate_bytes(data, chance)[: target.most]


def packed(*parts: Any) -> bytes:
    """Encode a composite input: several parts in one MessagePack list."""
    return bytes(msgpack.Packer(use_bin_type=True).pack(list(parts)))


def unpacked(data: bytes, *kinds: type) -> list[Any] | None:
    """Return the parts of a composite input; None if it does not have these kinds of parts."""
    try:
        parts = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, RecursionError, msgpack.UnpackException):
        return None
    fits = isinstance(parts, list) and len(parts) == len(kinds)
    return parts if fits and all(map(isinstance, parts, kinds)) else None


def repacked(plain: Any) -> bytes:
    """Encode a part of a composite input; empty for what MessagePack cannot encode."""
    try:
        return bytes(msgpack.Packer(use_bin_type=True).pack(plain))
    except (ValueError, TypeError, OverflowError):
        return b""


def targets() -> dict[str, Target]:
    """Return all targets by name."""
    from fuzz import answers, decoders, handlers, wires

    found: dict[str, Target] = {}
    for module in (decoders, handlers, answers, wires):
        for target in module.targets():
            assert target.name not in found, target.name
            found[target.name] = target
    return found
