"""Paths that lead to no regular file: none blocks, each ends in a message that says what it is."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from distro_node.crypto.hashing import content_id, content_text
from distro_node.node import config
from distro_node.node.cli import fit
from distro_node.node.cli.options import read_secret
from distro_node.node.content.mirrors import Mirrors
from distro_node.node.create.formats import open_stream
from distro_node.node.create.manifest_file import read_manifest_file
from distro_node.node.create.model_config import read_checkpoint_config
from distro_node.node.create.splits import read_card
from distro_node.node.create.tokens import FileTokenizer
from distro_node.node.dashboard import address
from distro_node.node.errors import ExitCode
from distro_node.node.results.receipt_files import verify_receipt
from distro_node.node.training.tokenizer_settings import read_template
from distro_node.node.util.regular_files import NotRegularFile, open_regular, read_regular

# Private here: `_read`, `_parse`, `_context`: what commands do first with a path.

KINDS = {
    "fifo": "it is a named pipe, not a file",
    "socket": "it is a socket, not a file",
    "device": "it is a device, not a file",
    "directory": "it is a directory, not a file",
}
PURPOSE = address.Purpose(what="x", option="--x", example="x", tls=("--cert", "--key", "--plain"))
READERS: dict[str, Callable[[Path], object]] = {
    "founder's file": read_manifest_file,
    "configuration file": config._parse,
    "manifest": fit._read,
    "receipt": lambda path: verify_receipt(path, None, None),
    "tokenizer": FileTokenizer,
    "chat template": read_template,
    "model's configuration": lambda path: read_checkpoint_config(path.parent),
    "certificate": lambda path: address._context(
        address.Encryption(certificate=path, key=path), PURPOSE
    ),
    "data file": lambda path: open_stream(path).__enter__(),
}


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Fail a test that blocks, as opening a named pipe does."""

    def give_up(*_: object) -> None:
        raise AssertionError("blocked")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def odd(kind: str, path: Path) -> None:
    """Put something there that is no regular file."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        # The path of a socket has at most 108 bytes; the caller is in its folder.
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", READERS)
def test_a_path_to_something_else_than_a_file_is_told(
    kind: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.json"
    odd(kind, path)
    with pytest.raises(Exception, match=KINDS[kind]):
        READERS[what](path)


@pytest.mark.parametrize("kind", KINDS)
def test_odd_files_beside_the_data_are_passed_over(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cid = content_id(b"a blob")
    odd(kind, tmp_path / "README.md")
    odd(kind, tmp_path / content_text(cid))
    assert read_card(tmp_path / "README.md") is None
    assert trio.run(Mirrors([str(tmp_path)]).get, cid, 100) is None


def test_a_secret_may_come_through_a_pipe(tmp_path: Path) -> None:
    """As in `--passphrase-file <(pass show key)`; a named pipe without a writer has none."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(Exception, match="passphrase in its first line"):
        read_secret(pipe, "passphrase", "--passphrase-file", ExitCode.KEYSTORE)
    reading, writing = os.pipe()
    os.write(writing, b"a secret\nmore")
    assert (
        read_secret(Path(f"/dev/fd/{reading}"), "passphrase", "-", ExitCode.KEYSTORE) == "a secret"
    )
    os.close(writing)
    os.close(reading)


def test_a_regular_file_is_read_within_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_regular(file, 5) == b"12345"
    assert read_regular(file, 3) == b"1234"
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(NotRegularFile):
            open_regular(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == open_files
