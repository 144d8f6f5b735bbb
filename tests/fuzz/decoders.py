"""The decoders that a stranger's bytes reach, each with honest examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import trio
import trio.testing
from chain.committee_chain import AggregatedChain
from codec.test_update import layout_of, random_update
from distro_node.crypto.envelope import Envelope, EnvelopeError, open_envelope, seal
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import peer_text
from distro_node.node.content.manifest_search import read_manifest
from distro_node.node.dashboard.access_control import AccessGuard
from distro_node.node.dashboard.event_stream import EventStream
from distro_node.node.dashboard.http import Bounds, HttpServer
from distro_node.node.dashboard.routes import Routes, read_body
from distro_node.node.doctor.swarm_fit import swarm_fit
from distro_node.node.errors import UserError
from distro_node.node.listing import entries
from distro_node.node.network.addresses import parse_announce, parse_dial, split_circuit
from distro_node.node.network.discovery import member_names
from distro_node.node.network.discovery.mdns import dialable
from distro_node.node.network.errors import BadAddress
from distro_node.node.network.nat.dial_back import (
    decode_ports,
    decode_result,
    encode_ports,
    encode_result,
)
from distro_node.node.network.nat.hole_punching import decode_endpoints, encode_endpoints
from distro_node.node.network.nat.port_mapping import PortMapping
from distro_node.node.serve.api_error import ApiError
from distro_node.node.serve.completion_request import parse_completion
from distro_node.node.settings.tree import FitSettings
from distro_node.node.trainer.tasks.prompt_samples import read_prompt
from distro_node.node.trainer.tasks.stored_pairs import read_pairs
from distro_node.node.training.architectures import (
    ARCHITECTURES,
    DENOISERS,
    IMAGE_CLASSIFIERS,
    check_configuration,
)
from distro_node.node.training.device_probe import Survey
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.preference_pairs import PairLayout
from distro_node.node.training.tokenizer_settings import TokenizerSettings, decode_settings
from distro_node.node.util.sanitize import harmless
from distro_node.protocol.chain.entry_store import EntryStore, decode_decided
from distro_node.protocol.chain.receipts import decode_receipt, examine, write_receipt
from distro_node.protocol.chain.saved_chain import encode_state, restored_ledger
from distro_node.protocol.chain.sync import decode_request, decode_response, read_answer
from distro_node.protocol.codec.update import decode_update, encode_update
from distro_node.protocol.committee.aggregate import (
    Aggregate,
    Momentum,
    decode_aggregate,
    encode_aggregate,
    max_aggregate_bytes,
    summed,
)
from distro_node.protocol.committee.sections import sections
from distro_node.protocol.committee.sign_vote import decode_part, encode_part, selected_count
from distro_node.protocol.committee.sign_vote_tree import open_part, sign_vote_id, with_proof
from distro_node.protocol.wire import introductions
from distro_node.protocol.wire.blobs import decode_any_blob_list, decode_blob_list
from distro_node.protocol.wire.encoding import decode, decode_plain, encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import SwarmId, decode_manifest
from distro_node.protocol.wire.messages import MESSAGE_TYPES, Record, decode_message
from distro_node.protocol.wire.relay_requests import open_relay_request, relay_request
from distro_node.protocol.wire.structure import StructureError
from distro_node.protocol.wire.swarm_id import (
    Invite,
    SwarmIdError,
    invite_text,
    parse_invite,
)
from fuzz.targets import Target, packed, repacked, unpacked
from simulation.audited_chain import VouchedChain
from simulation.chain import Chain
from simulation.formats import BLOBS, FORMATS, MANIFEST, PEERS
from simulation.swarm import identity
from statuses import TRAINING

# Private here: `_announce`: what takes a router's word; to ask one takes minutes.
SWARM = SwarmId(content_id(b"fuzz"))
STRANGER = identity(40)
LAYOUT = layout_of((16, 12), (7,), (), top_k=3)
_PAIRS = replace(
    MANIFEST.data,
    sequence_length=16,
    token_bytes=2,
    vocabulary=300,
    marked=True,
    attention="sequence",
)
_PAIR_BYTES = 2 * 17
_UNET: dict[str, Any] = {
    "model_type": "unet2d",
    "sample_size": 8,
    "in_channels": 1,
    "out_channels": 1,
    "block_out_channels": [8, 16],
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "attention_head_dim": 8,
}
_DIAL = f"/ip4/93.184.216.34/tcp/4001/p2p/{peer_text(STRANGER.peer)}"
_CIRCUIT = (
    f"/ip4/93.184.216.34/tcp/1/p2p/{peer_text(PEERS[0])}/p2p-circuit/p2p/{peer_text(STRANGER.peer)}"
)

# Samples of 16 numbers and one more, of two bytes each.
_PROMPTS: Any = SimpleNamespace(sequence_length=16, token_bytes=2, vocabulary=256)

# Decoders found by `inventory.decoders` that only the owner's own files, words or programs reach.
_COMPLETIONS = (
    b'{"model": "m", "prompt": ["a", "b"], "n": 2, "stop": ["."], "seed": 3, "temperature": 0.5}',
    b'{"model": "m", "stream": true, "stream_options": {"include_usage": true}, "messages": '
    b'[{"role": "system", "content": ""}, {"role": "user", "content": [{"type": "text", "text": ""}]}]}',
)
"""Bodies of requests to `serve`."""

OWNERS = {
    "node.create.images:decode_image": "the founder's data: tests/create",
    "node.create.rows:parse_json": "the founder's data: tests/create",
    "node.settings.values:parse_model_address": "the command line",
    "node.settings.values:parse_bootstrap": "the command line; it is `check_bootstrap`",
    "node.settings.values:parse_multiaddr": "the command line; it is `check_multiaddr`",
    "node.settings.values:parse_target": "the command line; what it reads is `parse_invite`'s",
    "node.util.schedule:parse_hours": "the command line",
    "node.cli.options:read_secret": "the command line; the owner's own file",
    "node.network.addresses:parse_listen": "the command line",
    "node.settings.values:parse_dashboard_address": "the command line",
    "node.settings.values:parse_device": "the command line",
    "node.settings.values:parse_display_name": "the command line",
    "node.settings.values:parse_join_target": "the command line; links go to `parse_target`",
    "node.settings.values:parse_devices": "the command line",
    "node.settings.values:parse_torchrun_device": "the command line",
    "node.settings.values:parse_metrics_address": "the command line",
    "node.settings.values:parse_mirror": "the command line",
    "node.settings.values:parse_prompt": "the command line",
    "node.settings.values:parse_rate": "the command line",
    "node.settings.values:parse_size": "the command line",
    "node.training.cuda_driver:read_driver": "the system's own library",
    "node.storage.verified_prefix:decode_statement": "the node's own file, with its signature",
    "node.telemetry.status:decode_any_status": "the owner's own control socket",
    "node.telemetry.status:decode_status": "the owner's own control socket",
}


def targets() -> Iterator[Target]:
    """Yield a target for each decoder, and for parsers of a stranger's input that are not named as
    decoders."""
    formats = {name: format_.data for name, format_ in FORMATS.items()}
    kinds = [*MESSAGE_TYPES]
    yield Target(
        "message",
        _message,
        tuple(packed(number, msgpack.unpackb(formats[k])) for number, k in enumerate(kinds)),
        ("protocol.wire.messages:decode_message", "protocol.wire.encoding:decode"),
    )
    yield Target(
        "record",
        partial(decode, Record, max_bytes=1 << 20),
        (formats["record"], formats["record_audits"], formats["record_reaudits"]),
        ("protocol.wire.encoding:decode",),
    )
    yield Target(
        "plain",
        partial(decode_plain, max_bytes=1 << 20),
        (formats["record"], formats["manifest"]),
        ("protocol.wire.encoding:decode_plain",),
    )
    yield Target(
        "envelope",
        partial(open_envelope, swarm=SWARM),
        (seal(STRANGER, "vote", SWARM, formats["vote"]), seal(STRANGER, "x", SWARM, b"")),
        ("crypto.envelope:open_envelope",),
        (EnvelopeError,),
        structured=False,
    )
    for chat in (False, True):
        yield Target(
            "chat request" if chat else "completion request",
            partial(parse_completion, chat=chat, most_tokens=100),
            _COMPLETIONS,
            ("node.serve.completion_request:parse_completion",),
            (ApiError,),
            structured=False,
        )
    yield Target(
        "manifest",
        lambda data: decode_manifest(data, SwarmId(content_id(data))),
        tuple(data for name, data in formats.items() if name.startswith("manifest")),
        ("protocol.wire.manifest:decode_manifest",),
    )
    yield Target(
        "manifest for users",
        lambda data: read_manifest(data, SwarmId(content_id(data))),
        (formats["manifest"],),
        ("node.content.manifest_search:read_manifest",),
        (UserError,),
    )
    yield Target(
        "stored prompt",
        lambda data: read_prompt(_PROMPTS, data.ljust(34, b"\0")[:34], 4),
        (
            np.array([1 << 15 | 50, 51, 1 << 14 | 52, *[1 << 15] * 14], "<u2").tobytes(),
            bytes(34),
        ),
        ("node.trainer.tasks.prompt_samples:read_prompt",),
        (TrainerFailed,),
        most=34,
        structured=False,
    )
    yield Target(
        "blob list",
        lambda data: (
            decode_any_blob_list(data),
            decode_blob_list(data, "snapshot", BLOBS.size),
        ),
        (formats["blob_list"],),
        (
            "protocol.wire.blobs:decode_any_blob_list",
            "protocol.wire.blobs:decode_blob_list",
        ),
    )
    yield Target(
        "sync request",
        decode_request,
        (formats["sync_request"],),
        ("protocol.chain.sync:decode_request",),
    )
    yield Target(
        "sync response",
        _sync_response,
        (formats["sync_response"],),
        ("protocol.chain.sync:decode_response", "protocol.chain.sync:read_answer"),
    )
    yield Target(
        "ledger entry",
        decode_decided,
        (formats["decided"],),
        ("protocol.chain.entry_store:decode_decided",),
    )
    for name, chain in (
        ("plain", Chain(3).grow_until(5)),
        ("audited", VouchedChain(3).check(9)),
        ("committee", AggregatedChain(6).grow_until(7)),
    ):
        stored = _Stored(chain)
        yield Target(
            f"state of a {name} chain",
            stored.restore,
            (stored.seed,),
            ("protocol.chain.saved_chain:restored_ledger",),
            most=1 << 14,
        )
    checked = VouchedChain().grow_until(7)
    receipt = write_receipt(checked.ledger, 6, identity(1).peer)
    assert receipt is not None
    yield Target(
        "receipt",
        _receipt,
        (receipt.encode(),),
        ("protocol.chain.receipts:decode_receipt",),
    )
    yield from _pages()
    yield from _introductions()
    yield from _listing()
    yield Target(
        "name of a member",
        lambda data: member_names.open_name(data, SWARM, STRANGER.peer),
        (member_names.seal_name(STRANGER, SWARM, "a name"),),
        ("node.network.discovery.member_names:open_name",),
        structured=False,
    )
    yield Target(
        "name of a member on the disk",
        lambda data: member_names.open_any_name(data, SWARM),
        (member_names.seal_name(STRANGER, SWARM, "a name"),),
        ("node.network.discovery.member_names:open_any_name",),
        structured=False,
    )
    yield Target(
        "name of a member, well signed",
        _signed_name,
        (packed("a name"), packed("\x1b[2J")),
        ("node.network.discovery.member_names:open_name",),
    )
    chain = Chain(2)
    said = chain.announcement(0)
    relayed = relay_request(
        chain.manifest.swarm, identity(0).peer, said, chain.signature(0, "announcement", said)
    )
    yield Target(
        "relay request",
        open_relay_request,
        (relayed.sealed,),
        ("protocol.wire.relay_requests:open_relay_request",),
        structured=False,
        most=600,
    )
    update = random_update(LAYOUT, np.random.default_rng(1))
    body = encode_update(LAYOUT, update.positions, update.signs)
    yield Target(
        "update",
        partial(decode_update, LAYOUT),
        (body, body[:1] + bytes(len(body) - 1)),
        ("protocol.codec.update:decode_update",),
        structured=False,
        most=len(body) + 8,
    )
    yield from _committees()
    yield from _nat()
    yield from _texts()
    yield Target(
        "model configuration",
        _configuration,
        (
            *(repacked({"model_type": kind}) for kind in ARCHITECTURES),
            repacked(dict(MANIFEST.model)),
            *(
                repacked({"model_type": kind, key: 4})
                for kind in ("llama", "gpt2", "phi3")
                for key in ARCHITECTURES[kind]
            ),
            repacked(_UNET),
            *(repacked(_UNET | {key: 4}) for key in DENOISERS["unet2d"]),
            *(
                repacked({"model_type": kind, key: 4})
                for kind, keys in IMAGE_CLASSIFIERS.items()
                for key in keys
            ),
        ),
        ("the configuration of a model",),
        (StructureError, ProtocolError),
    )
    yield Target(
        "fit of a listed swarm",
        _fit,
        (
            packed(dict(MANIFEST.model), "causal_lm"),
            packed(_UNET, "diffusion"),
            packed({"model_type": "vit", "num_labels": 2}, "image_classification"),
            packed({"model_type": "resnet", "depths": [1], "hidden_sizes": [4]}, "diffusion"),
            *(
                packed({"model_type": kind, "num_hidden_layers": 2}, "sft")
                for kind in ARCHITECTURES
            ),
        ),
        ("node.doctor.swarm_fit:swarm_fit",),
        (),
    )
    pair = PairLayout(_PAIRS.sequence_length, _PAIRS.token_bytes)
    row = pair.row(np.array([1 << 15, 1 << 14 | 5]), np.array([1 << 15, 1 << 14 | 6]), 0, 1 << 15)
    yield Target(
        "preference pair",
        _pair,
        tuple(
            pair.with_margins(row[None], np.array([margin])).tobytes() for margin in (0.0, -3e38)
        ),
        ("node.trainer.tasks.stored_pairs:read_pairs",),
        (TrainerFailed,),
        structured=False,
        most=_PAIR_BYTES,
    )
    yield Target(
        "tokenizer's settings",
        decode_settings,
        (
            TokenizerSettings(eos_token="</s>", chat_template="{{ messages }}").encode(),
            TokenizerSettings().encode(),
        ),
        ("node.training.tokenizer_settings:decode_settings",),
        (StructureError,),
        structured=False,
    )


class _Stored:
    """A chain's entries, as a restarted node has them, and its state with the indexes' own as values."""

    def __init__(self, chain: Chain) -> None:
        ledger = self._ledger = chain.ledger
        entries = [ledger.raw(round_) for round_ in range(len(ledger))]
        spill: Any = SimpleNamespace(get=entries.__getitem__)
        self._entries = EntryStore.stored(spill, [*range(len(entries))])
        length, head, states = msgpack.unpackb(encode_state(ledger))
        self.seed = packed(length, head, [*map(msgpack.unpackb, states)])

    def restore(self, data: bytes) -> None:
        parts = unpacked(data, int, bytes, list)
        if parts is not None:
            length, head, states = parts
            data = packed(length, head, [*map(repacked, states)])
        restored_ledger(self._ledger.manifest, data, self._entries, verify=self._ledger.verify)


def _receipt(data: bytes) -> None:
    """Decode and examine a receipt as for a file."""
    examine(decode_receipt(data))


def _pages() -> Iterator[Target]:
    host = b"Host: localhost:9465\r\n"
    act = b"X-Distro-Token: token\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n"
    yield Target(
        "page request",
        _page_request,
        (
            b"GET / HTTP/1.1\r\n" + host + b"Origin: http://localhost:9465\r\n\r\n",
            b"GET /api/stream HTTP/1.1\r\n" + host + b"Sec-Fetch-Site: none\r\n\r\n",
            b"POST /api/act/hours HTTP/1.1\r\n" + host + act + b'{"active": null}',
            b"GET /api/status HTTP/1.1\r\nHost: [::1]\r\n\r\n" * 2,
        ),
        ("node.util.host_names:host_name", "requests to the page"),
        allowed=(),
        structured=False,
    )
    yield Target(
        "page command",
        read_body,
        (b'{"active": "22:00-07:00"}', b'{"upload": null, "download": "5Mbit"}'),
        ("node.dashboard.routes:read_body",),
        allowed=(),
        structured=False,
    )


def _page_request(data: bytes) -> None:
    """Send this to the page and hang up."""
    guard = AccessGuard(host="127.0.0.1", token="token", secure=False, free_reading=True)
    acts = {"hours": lambda words: dict(words)}

    async def converse() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(data)
        await theirs.send_eof()
        pages = Routes(guard, EventStream(lambda: TRAINING, lambda: None), acts)
        bounds = Bounds(idle_seconds=1.0, request_seconds=1.0)
        await HttpServer(pages.answer, bounds=bounds).serve_stream(ours)

    # The clock does not advance: a client's slowness is another subject, and the machine may be busy.
    trio.run(converse, clock=trio.testing.MockClock())


def _introductions() -> Iterator[Target]:
    record = introductions.seal_peer_record(STRANGER, SWARM, [_DIAL, _CIRCUIT], 1_700_000_000)
    yield Target(
        "peer record",
        partial(introductions.open_peer_record, swarm=SWARM),
        (record,),
        ("protocol.wire.introductions:open_peer_record", "protocol.wire.sealed:open_sealed"),
        structured=False,
    )
    yield Target(
        "peer record, well signed",
        _signed_record,
        (packed([_CIRCUIT], 1_700_000_000), packed([], 0)),
        ("protocol.wire.introductions:open_peer_record",),
    )
    yield Target(
        "introduction request",
        partial(_respelled, introductions.decode_request),
        (
            introductions.IntroductionRequest(SWARM, record).encode(),
            introductions.IntroductionRequest(SWARM, None).encode(),
        ),
        ("protocol.wire.introductions:decode_request",),
    )
    yield Target(
        "introductions",
        partial(_respelled, introductions.decode_response),
        (introductions.IntroductionResponse((record, record)).encode(),),
        ("protocol.wire.introductions:decode_response",),
    )
    yield Target(
        "spoken version",
        partial(_respelled, introductions.decode_version_message),
        (introductions.VersionMessage(2).encode(), introductions.VersionMessage(2**31).encode()),
        ("protocol.wire.introductions:decode_version_message",),
    )


def _respelled(decode_value: Callable[[bytes], Any], data: bytes) -> object:
    """Decode what must have no second spelling."""
    value = decode_value(data)
    assert value.encode() == data, "a second spelling"
    return value


def _listing() -> Iterator[Target]:
    entry = _entry(SWARM)
    manifest = FORMATS["manifest"].data
    yield Target(
        "entry of a list",
        partial(entries.open_entry, swarm=SWARM),
        (entry,),
        ("node.listing.entries:open_entry",),
        structured=False,
    )
    yield Target(
        "entry of a list, well signed",
        _signed_entry,
        (packed(5, 1_700_000_000, 3, 20, 1000), packed(0, 0, 1, 0, None)),
        ("node.listing.entries:open_entry",),
    )
    yield Target(
        "publishing",
        entries.decode_publish_request,
        (
            entries.PublishRequest(SWARM, entry, None).encode(),
            entries.PublishRequest(SWARM, entry, manifest).encode(),
        ),
        ("node.listing.entries:decode_publish_request",),
    )
    yield Target(
        "answer to publishing",
        entries.decode_publish_response,
        (
            entries.PublishResponse(True, None).encode(),
            entries.PublishResponse(False, entry).encode(),
        ),
        ("node.listing.entries:decode_publish_response",),
    )
    yield Target(
        "list of swarms",
        entries.decode_listing,
        (entries.SwarmListing((entries.ListedSwarm(SWARM, (entry, entry)),)).encode(),),
        ("node.listing.entries:decode_listing",),
    )
    yield Target(
        "manifest of a public swarm",
        lambda data: entries.check_public(data, SwarmId(content_id(data))),
        (manifest, repacked({"admission": {"public": True}})),
        ("node.listing.entries:check_public",),
    )


def _entry(swarm: SwarmId) -> bytes:
    return entries.seal_entry(
        STRANGER,
        swarm,
        number=5,
        written=1_700_000_000,
        members=3,
        rounds_done=20,
        tokens_per_second=1000,
    )


def _signed_entry(data: bytes) -> object:
    sealed = seal(STRANGER, "listing", SWARM, data[: entries.MAX_ENTRY_BYTES])
    opened = entries.open_entry(sealed, SWARM)
    assert opened.publisher == STRANGER.peer
    return opened


def _signed_name(data: bytes) -> object:
    sealed = seal(STRANGER, "name", SWARM, data[: member_names.MAX_NAME_BYTES - 139])
    name = member_names.open_name(sealed, SWARM, STRANGER.peer)
    assert harmless(name) == name
    return name


def _committees() -> Iterator[Target]:
    """Yield the targets for messages to and from committees."""
    own, signs = sections(LAYOUT, 2)[1], []
    for tensor in own.layout.tensors:
        signs.append(np.ones((tensor.blocks, selected_count(tensor, 2, 0)), np.int8))
    parts = [b"\1", encode_part(own, signs), b"\1\0"]
    ids = [content_id(part) for part in parts]
    part = with_proof(ids, 1, parts[1])

    def read_part(data: bytes) -> object:
        return decode_part(own, 2, 0, open_part(sign_vote_id(ids), 1, len(ids), data))

    yield Target(
        "part of a sign vote",
        read_part,
        (part,),
        ("protocol.committee.sign_vote:decode_part", "protocol.committee.sign_vote_tree:open_part"),
        structured=False,
        most=len(part) + 8,
    )
    momentum = Momentum(own)
    momentum.add(summed(own, 2, 0, [(signs, 1)]), 2, 0)
    aggregate = encode_aggregate(
        own, Aggregate(1, 2, (True, False, True), momentum.take_strongest(0))
    )
    yield Target(
        "aggregate",
        partial(decode_aggregate, LAYOUT),
        (aggregate,),
        ("protocol.committee.aggregate:decode_aggregate",),
        structured=False,
        most=max_aggregate_bytes(LAYOUT),
    )


def _nat() -> Iterator[Target]:
    yield Target(
        "dial-back ports",
        decode_ports,
        (encode_ports([4001]), encode_ports([1, 2, 3, 65535])),
        ("node.network.nat.dial_back:decode_ports",),
        structured=False,
        most=16,
    )
    yield Target(
        "dial-back finding",
        lambda data: decode_result(data, [4001, 4002]),
        (encode_result(["reached", "failed"], "93.184.216.34"), b"\1\2" + b"2001:db8::1"),
        ("node.network.nat.dial_back:decode_result",),
        structured=False,
        most=64,
    )
    yield Target(
        "punching places",
        decode_endpoints,
        (
            encode_endpoints((("93.184.216.34", 4001), ("2606:2800::1", 65535))),
            encode_endpoints((("2606:2800::1", 65535),)),
            b"",
        ),
        ("node.network.nat.hole_punching:decode_endpoints",),
        structured=False,
        most=128,
    )


def _texts() -> Iterator[Target]:
    def text(read: Callable[[str], Any]) -> Callable[[bytes], Any]:
        return lambda data: read(data.decode("utf-8", "replace"))

    def addresses(given: str) -> None:
        for read in (parse_dial, parse_announce, split_circuit):
            try:
                read(given)
            except BadAddress:
                continue

    yield Target(
        "addresses",
        text(addresses),
        tuple(
            each.encode() for each in (_DIAL, _CIRCUIT, "/dns4/a.example/tcp/1", "/ip6/::1/tcp/9")
        ),
        (
            "node.network.addresses:parse_dial",
            "node.network.addresses:parse_announce",
            "node.network.addresses:split_circuit",
        ),
        (BadAddress,),
        structured=False,
        most=400,
    )
    links = (
        Invite(swarm=SWARM),
        Invite(swarm=SWARM, bootstrap=(_DIAL,), ticket="QUJD"),
        Invite(swarm=SWARM, bootstrap=(_DIAL, _CIRCUIT)),
    )
    yield Target(
        "invite link",
        text(parse_invite),
        tuple(invite_text(link).encode() for link in links),
        ("protocol.wire.swarm_id:parse_invite",),
        (SwarmIdError,),
        structured=False,
    )
    yield Target(
        "local network",
        _local,
        (
            packed({b"peer": peer_text(PEERS[0]).encode()}, 4001, ["192.168.1.7", "fe80::1%eth0"]),
            packed({}, 0, []),
        ),
        ("the answer to a question in the local network",),
    )
    yield Target(
        "router",
        text(_router),
        (b"93.184.216.34", b"192.168.1.1", b"::1", b""),
        ("the address that a router tells",),
        structured=False,
        most=200,
    )


def _router(outside: str) -> object:
    network: Any = SimpleNamespace(peer=STRANGER.peer, announce=lambda source, addresses: None)
    mapping = PortMapping(network, lambda: True)
    mapping._announce(outside, 4001)
    return mapping.address


def _message(data: bytes) -> object:
    parts = unpacked(data, int, object)
    kinds = [*MESSAGE_TYPES, "unknown"]
    kind, body = ("vote", data) if parts is None else (kinds[parts[0] % len(kinds)], parts[1])
    body = body if isinstance(body, bytes) else repacked(body)
    return decode_message(
        Envelope(kind=kind, swarm=SWARM, sender=PEERS[0], body=body, signature=bytes(64))
    )


def _sync_response(data: bytes) -> object:
    decode_response(data)
    return [*read_answer(data).entries()]


def _signed_record(data: bytes) -> object:
    sealed = seal(STRANGER, "peer", SWARM, data[:2900])
    # A valid record can be passed on, and read again.
    record = introductions.open_peer_record(sealed, SWARM)
    for address in record.addresses:
        try:
            parse_dial(address)
        except BadAddress:
            continue
    return encode(record)


def _configuration(data: bytes) -> object:
    table = decode_plain(data, max_bytes=1 << 20)
    return check_configuration(table) if isinstance(table, dict) else None


def _fit(data: bytes) -> object:
    parts = unpacked(data, dict, str)
    if parts is None:
        return None
    config, task = parts
    try:
        manifest = replace(MANIFEST, model=config, task=task)
    except ValueError:
        return None
    device = Survey("cpu", "a processor", 10**9, 0, ())
    return swarm_fit(manifest, device, FitSettings(data_dir=Path("/nowhere")))


def _pair(data: bytes) -> object:
    # A reader gets as many bytes as it asks for.
    return read_pairs(_PAIRS, [data[:_PAIR_BYTES].ljust(_PAIR_BYTES, b"\0")])


def _local(data: bytes) -> object:
    parts = unpacked(data, dict, object, list)
    if parts is None:
        return None
    # As the library passes them: bytes for properties, text for addresses.
    properties, port, hosts = parts
    info = SimpleNamespace(
        properties={
            key if isinstance(key, bytes) else str(key).encode("utf-8", "replace"): value
            for key, value in properties.items()
            if value is None or isinstance(value, bytes)
        },
        port=port if type(port) is int else None,
        parsed_scoped_addresses=lambda: [str(host)[:200] for host in hosts],
    )
    return dialable(info, STRANGER.peer)
