"""Wire formats are frozen: the same value has the same bytes for ever.

`tests/golden/messages.json` holds one instance of each format as hex, with its content id. If a test
here fails after a change, the change is incompatible with the nodes in use. If that is intended, it is a
new protocol version (`PROTOCOL_VERSION` in protocol/wire/manifest.py): raise it, then rewrite the file
and commit both:

    PYTHONPATH=tests .venv/bin/python tests/wire/test_golden.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distro_node.crypto.hashing import content_id, content_text
from distro_node.node.network.nat.dial_back import (
    DialBackResult,
    decode_ports,
    decode_result,
    encode_ports,
    encode_result,
)
from distro_node.node.network.nat.hole_punching import (
    DIAL,
    EXCHANGE,
    decode_endpoints,
    encode_endpoints,
)
from distro_node.protocol.wire.messages import MESSAGE_TYPES
from simulation.formats import FORMATS, MANIFEST, RECORD

PATH = Path(__file__).resolve().parents[1] / "golden" / "messages.json"


@dataclass(frozen=True)
class Spelt:
    """Message of `node/network` spelled byte by byte: its bytes, its value, the decoder."""

    data: bytes
    value: Any
    decode: Callable[[bytes], Any]


PORTS = [4001, 1, 65535]
ENDPOINTS = (("7.7.0.1", 4001), ("2600::1", 65535))
SPELT = {
    "dial_back_question": Spelt(encode_ports(PORTS), PORTS, decode_ports),
    "dial_back_answer": Spelt(
        encode_result(("reached", "failed", "untried"), "2001:db8::1"),
        DialBackResult("2001:db8::1", {4001: "reached", 1: "failed", 65535: "untried"}),
        lambda data: decode_result(data, PORTS),
    ),
    "punch_where": Spelt(
        EXCHANGE + encode_endpoints(ENDPOINTS),
        ENDPOINTS,
        lambda data: decode_endpoints(data.removeprefix(EXCHANGE)),
    ),
    "punch_answer": Spelt(encode_endpoints(ENDPOINTS[1:]), ENDPOINTS[1:], decode_endpoints),
    "punch_now": Spelt(DIAL, DIAL, bytes),
}
ALL: dict[str, Any] = {**FORMATS, **SPELT}


def current() -> dict[str, dict[str, str]]:
    return {
        name: {"id": content_text(content_id(format_.data)), "hex": format_.data.hex()}
        for name, format_ in ALL.items()
    }


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, str]]:
    return json.loads(PATH.read_text(encoding="utf-8"))


def test_every_format_is_there(golden: dict[str, dict[str, str]]) -> None:
    assert golden.keys() == ALL.keys()
    assert golden.keys() >= MESSAGE_TYPES.keys()


@pytest.mark.parametrize("name", ALL)
def test_values_encode_as_ever(name: str, golden: dict[str, dict[str, str]]) -> None:
    assert current()[name] == golden[name]


@pytest.mark.parametrize("name", ALL)
def test_bytes_decode_as_ever(name: str, golden: dict[str, dict[str, str]]) -> None:
    assert ALL[name].decode(bytes.fromhex(golden[name]["hex"])) == ALL[name].value


def test_ids_are_those_of_the_bytes(golden: dict[str, dict[str, str]]) -> None:
    for name, id_ in (("record", RECORD.id), ("manifest", MANIFEST.swarm)):
        assert content_id(bytes.fromhex(golden[name]["hex"])) == id_


def main() -> None:
    PATH.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
