"""What is attacked: a target is something that takes a stranger's bytes, and what it may raise.

`targets` has all of them by name. Which decoder or served protocol each stands for is in `covers`; a
test compares that with what the source has (`inventory`). `attempt` is the whole of the claim: an input
gives a value or one of the errors that the target names, in less than `LIMIT_SECONDS` of processor.
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
"""Processor time of one input, as the least of `_REPEATS`: what a handler may keep others waiting."""

_REPEATS = 7


@dataclass(frozen=True)
class Target:
    """`run` takes any bytes and raises nothing but what is `allowed`."""

    name: str
    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    """What an honest peer sends, more or less; from these the others are made."""
    covers: tuple[str, ...]
    """Decoders, as `module:function`, and protocols; what has no name of its own is described."""
    allowed: tuple[type[Exception], ...] = (ProtocolError,)
    most: int = 4096
    """The longest input in bytes; no more than the bound that the handler itself has."""
    structured: bool = True
    """Whether inputs are MessagePack, so that values can be changed as well as bytes."""


class Finding(AssertionError):
    """An input did what none may do."""


def attempt(target: Target, data: bytes) -> tuple[bool, float]:
    """Whether an input gave a value, and its seconds of processor. Raises `Finding`."""
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
    """The least of several attempts: what else a machine does only adds to it. Raises `Finding`."""
    return min(attempt(target, data)[1] for _ in range(_REPEATS))


def mutated(target: Target, data: bytes, chance: random.Random) -> bytes:
    """Another input, made from one: its bytes changed or its values."""
    if not target.structured:
        return mutate_bytes(data, chance)[: target.most]
    try:
        return hostile(data, chance)[: target.most]
    except (ValueError, RecursionError, TypeError, OverflowError, msgpack.UnpackException):
        # It was no MessagePack to begin with, or became what that cannot say.
        return mutate_bytes(data, chance)[: target.most]


def packed(*parts: Any) -> bytes:
    """A composite input: several things in one MessagePack list."""
    return bytes(msgpack.Packer(use_bin_type=True).pack(list(parts)))


def unpacked(data: bytes, *kinds: type) -> list[Any] | None:
    """The parts of a composite input; None if it is not one of these kinds of parts."""
    try:
        parts = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, RecursionError, msgpack.UnpackException):
        return None
    fits = isinstance(parts, list) and len(parts) == len(kinds)
    return parts if fits and all(map(isinstance, parts, kinds)) else None


def repacked(plain: Any) -> bytes:
    """A part of a composite input, as bytes; empty for what MessagePack cannot say."""
    try:
        return bytes(msgpack.Packer(use_bin_type=True).pack(plain))
    except (ValueError, TypeError, OverflowError):
        return b""


def targets() -> dict[str, Target]:
    """All of them, by name."""
    from fuzz import answers, decoders, handlers, wires

    found: dict[str, Target] = {}
    for module in (decoders, handlers, answers, wires):
        for target in module.targets():
            assert target.name not in found, target.name
            found[target.name] = target
    return found
