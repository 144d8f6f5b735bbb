"""Which samples a member computes in a round: a pure function of what all members know.

The corpus is an endless stream of positions, epoch after epoch, each epoch in an order of its own.
A round takes some positions (`deal`) and deals them out to its members, so shares never overlap and
nobody has to announce one. The order is a keyed permutation that is evaluated place by place: it
costs no memory, whatever the size of the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..crypto.hashing import content_id
from ..crypto.identity import PeerId

# Four pairs of rounds. Luby and Rackoff ask for four rounds of a random function; ours is a mixer,
# so twice as many. Nothing here is a secret: shuffling well is all that is wanted.
_FEISTEL_PAIRS = 4
_DOMAIN = b"distro-node sample order 1"


def share(
    seed: int,
    samples: int,
    positions: Sequence[range],
    members: Sequence[PeerId],
    me: PeerId,
    round_number: int,
) -> list[int]:
    """The sample indices that `me` computes in a round that deals these stream `positions`.

    An epoch is `samples` positions long. With fewer positions than members some shares are empty.

    Raises `ValueError` if `me` is no member, and what `samples_at` raises.
    """
    ordered = sorted(set(members))
    if me not in ordered:
        raise ValueError("this peer is not among the members")
    mine = places(sum(map(len, positions)), len(ordered), ordered.index(me), round_number)
    return [sample for run in cut(positions, mine) for sample in samples_at(seed, samples, run)]


def places(count: int, members: int, index: int, round_number: int) -> range:
    """Which of the `count` places that a round deals fall to the member with this index.

    Each gets a run of them, beginning with another member each round, so that a remainder falls on
    everybody alike. Runs, because what a member leaves untrained has to be remembered; their order
    does not matter, since samples are shuffled.
    """
    rank = (index - round_number) % members
    return range(rank * count // members, (rank + 1) * count // members)


def cut(ranges: Sequence[range], wanted: range) -> list[range]:
    """What lies at the `wanted` places of `ranges`, taken as one sequence."""
    pieces: list[range] = []
    before = 0
    for each in ranges:
        piece = each[max(0, wanted.start - before) : max(0, wanted.stop - before)]
        if piece:
            pieces.append(piece)
        before += len(each)
    return pieces


def samples_at(seed: int, samples: int, positions: range) -> list[int]:
    """The sample indices at these stream positions, each in [0, samples).

    Any `samples` positions of one epoch hit every sample once.

    Raises `ValueError` for an empty corpus, one over 2^62 samples, or a negative position.
    """
    if not 1 <= samples <= 1 << 62:
        raise ValueError(f"a corpus holds 1 to 2^62 samples, not {samples}")
    if len(positions) and min(positions[0], positions[-1]) < 0:
        raise ValueError("stream positions count from 0")
    if not 0 <= seed < 1 << 64:
        raise ValueError("the seed must be an unsigned 64-bit number")
    result: list[int] = []
    remaining = positions
    while remaining:
        epoch = remaining[0] // samples
        # One vector operation an epoch: take what of the positions lies before its end.
        inside = len(range(remaining[0], (epoch + 1) * samples, remaining.step))
        piece, remaining = remaining[:inside], remaining[inside:]
        places = np.arange(
            piece[0] - epoch * samples,
            piece[-1] - epoch * samples + 1,
            piece.step,
            dtype=np.uint64,
        )
        result += _permute(places, samples, _keys(seed, epoch)).tolist()
    return result


def _keys(seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    material = _DOMAIN + seed.to_bytes(8, "little") + epoch.to_bytes(16, "little")
    # 32 bytes a hash make four 64-bit keys.
    digests = [content_id(material + bytes([part])) for part in range(_FEISTEL_PAIRS // 2)]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _permute(
    places: npt.NDArray[np.uint64], samples: int, keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """A bijection of [0, samples): a Feistel network on the next power of two.

    A value that lands outside is put through again until it lands inside (cycle walking); since
    over half of the power of two is inside, that takes fewer than two passes on average.
    """
    bits = (samples - 1).bit_length()
    values = places
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        values[outside] = _feistel(values[outside], bits, keys)
        outside = values >= np.uint64(samples)
    return values


def _feistel(
    values: npt.NDArray[np.uint64], bits: int, keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    low_bits = np.uint64(bits - bits // 2)
    low_mask = np.uint64((1 << int(low_bits)) - 1)
    high_mask = np.uint64((1 << (bits // 2)) - 1)
    low, high = values & low_mask, values >> low_bits
    for pair in range(_FEISTEL_PAIRS):
        high = high ^ (_mix(low + keys[2 * pair]) & high_mask)
        low = low ^ (_mix(high + keys[2 * pair + 1]) & low_mask)
    return (high << low_bits) | low


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Stafford's 13th variant of the 64-bit finaliser: every input bit moves every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
