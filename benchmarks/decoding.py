"""The cost of decoding messages, and what msgspec would change.

    pip install msgspec
    python benchmarks/decoding.py [--members N] [--json FILE]

msgspec is not a dependency; docs/dependencies.md gives the reason, with these figures. The same
dataclasses are converted to its structures. Both decode an entry of the chain to the same value; for
comparison there is the cost of adding it to a ledger, which is mostly signatures. Then both get
bytes that must be refused.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from command_line import least_cpu_seconds, new_parser, write_json
from distro_node.crypto.hashing import content_id
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.blobs import CHUNK_BYTES, MAX_BLOB_LIST_BYTES, BlobList
from distro_node.protocol.wire.encoding import decode, encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import Announcement, Decided, RecordId
from distro_node.protocol.wire.structure import Length, Range
from simulation.chain import Chain

_REPEATS = 30
_CHUNKS = 1024
_MOST_BYTES = 4 << 20


class Structures:
    """Our dataclasses as structures of msgspec: lists in the order of the fields, with their bounds."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._made: dict[type, Any] = {}

    def of(self, cls: type) -> Any:
        """Return the structure for a dataclass."""
        if cls not in self._made:
            hints = typing.get_type_hints(cls, include_extras=True)
            fields = [(f.name, self._hint(hints[f.name])) for f in dataclasses.fields(cls)]
            self._made[cls] = self._library.defstruct(
                cls.__name__, fields, array_like=True, frozen=True, forbid_unknown_fields=True
            )
        return self._made[cls]

    def _hint(self, hint: Any) -> Any:
        if isinstance(hint, typing.NewType):
            plain = self._hint(hint.__supertype__)
            return self._bounded(plain, Length(32, 32)) if hint.__supertype__ is bytes else plain
        if typing.get_origin(hint) is Annotated:
            base, bound, *_ = typing.get_args(hint)
            base = base.__supertype__ if isinstance(base, typing.NewType) else base
            return self._bounded(self._hint(base), bound)
        if typing.get_origin(hint) is tuple:
            return tuple[tuple(i if i is ... else self._hint(i) for i in typing.get_args(hint))]
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            (inner,) = (i for i in typing.get_args(hint) if i is not type(None))
            return self._hint(inner) | None
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self.of(hint)
        return hint

    def _bounded(self, base: Any, bound: Any) -> Any:
        if isinstance(bound, Length):
            meta = self._library.Meta(min_length=bound.low, max_length=bound.high)
        elif isinstance(bound, Range) and base is int:
            # It supports no bound above 63 bits; integers beyond 64 bits it refuses by itself.
            most = {"le": int(bound.high)} if bound.high < 1 << 63 else {}
            meta = self._library.Meta(ge=int(bound.low), **most)
        else:
            meta = self._library.Meta(ge=bound.low, le=bound.high)
        return Annotated[base, meta]


def milliseconds(task: Callable[[], object]) -> float:
    """Return the CPU time of one run."""
    return round(1e3 * least_cpu_seconds(task, _REPEATS), 4)


def plain(value: Any) -> Any:
    """Convert a dataclass or a structure to lists."""
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    names = getattr(value, "__struct_fields__", None)
    return value if names is None else [plain(getattr(value, name)) for name in names]


def accepted(task: Callable[[], object], refusals: tuple[type[Exception], ...]) -> str:
    """Return "accepted", or the library's reason for refusal."""
    try:
        task()
    except refusals as error:
        return f"{type(error).__name__}: {error}"[:160]
    return "accepted"


def hostile() -> dict[str, bytes]:
    """Return encodings and values that must be refused, all of them nearly an announcement."""
    parent = RecordId(content_id(b"parent"))
    words = Announcement(7, parent, content_id(b"update"), 1000, 5, 2.5, 9)
    sound = encode(words)
    assert sound[:2] == b"\x97\x07"
    return {
        "a small number in nine bytes": b"\x97\xcf" + (7).to_bytes(8, "big") + sound[2:],
        "the list's length in five bytes": b"\xdd\x00\x00\x00\x07" + sound[1:],
        "a loss in four bytes": sound.replace(b"\xcb\x40\x04" + bytes(6), b"\xca\x40\x20\x00\x00"),
        "a loss that is a whole number": sound.replace(b"\xcb\x40\x04" + bytes(6), b"\x02"),
        "bytes behind it": sound + b"\xc0",
        "a list that claims 4,294,967,295 items": b"\xdd\xff\xff\xff\xff",
        "a loss that is no number": sound.replace(
            b"\xcb\x40\x04" + bytes(6), b"\xcb\x7f\xf8" + bytes(6)
        ),
        "a list of one field more": b"\x98" + sound[1:] + b"\xc0",
    }


def compare_speed(
    library: Any, structures: Structures, cls: type, value: Any, most: int
) -> dict[str, Any]:
    """Return the cost of decoding a value, ours and the library's, whose results must be equal."""
    data = encode(value)
    decoder, encoder = library.msgpack.Decoder(structures.of(cls)), library.msgpack.Encoder()
    assert plain(decoder.decode(data)) == plain(value)
    assert encoder.encode(decoder.decode(data)) == data
    return {
        "bytes": len(data),
        "ours_ms": milliseconds(lambda: decode(cls, data, max_bytes=most)),
        "msgspec_ms": milliseconds(lambda: decoder.decode(data)),
        "msgspec_and_one_spelling_ms": milliseconds(
            lambda: encoder.encode(decoder.decode(data)) == data
        ),
    }


def compare_strictness(library: Any, structures: Structures, data: bytes) -> dict[str, Any]:
    """Return the answers of both to bytes that must be refused."""
    decoder, encoder = (
        library.msgpack.Decoder(structures.of(Announcement)),
        library.msgpack.Encoder(),
    )
    refusals = (library.DecodeError, library.ValidationError)
    says = accepted(lambda: decoder.decode(data), refusals)
    return {
        "ours": accepted(lambda: decode(Announcement, data, max_bytes=1 << 20), (ProtocolError,)),
        "msgspec": says,
        "msgspec_and_one_spelling": says == "accepted"
        and encoder.encode(decoder.decode(data)) == data,
    }


def measure(members: int) -> dict[str, Any]:
    """Return all figures."""
    library = importlib.import_module("msgspec")
    structures = Structures(library)
    chain = Chain(members)
    for _ in range(_REPEATS + 1):
        chain.grow()
    chunks = tuple(content_id(b"%d" % number) for number in range(_CHUNKS))
    blobs = BlobList("snapshot", _CHUNKS * CHUNK_BYTES, chunks)
    entry = chain.ledger[5]
    ledger, rounds = Ledger(chain.manifest), iter(range(len(chain.ledger)))

    def append() -> None:
        raw = chain.ledger.raw(next(rounds))
        ledger.append(decode(Decided, raw, max_bytes=_MOST_BYTES))

    # The founding entry has hardly any signatures.
    append()
    return {
        "members": members,
        "msgspec": library.__version__,
        "entry": compare_speed(library, structures, Decided, entry, _MOST_BYTES),
        "blob_list": compare_speed(library, structures, BlobList, blobs, MAX_BLOB_LIST_BYTES),
        "chunks": _CHUNKS,
        "entry_taken_in_ms": milliseconds(append),
        "strictness": {
            name: compare_strictness(library, structures, data) for name, data in hostile().items()
        },
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    """Measure, print, write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--members", type=int, default=32)
    options = parser.parse_args()
    result = measure(options.members)
    print(json.dumps(result, indent=1))
    write_json(options.json, result)


if __name__ == "__main__":
    main()
