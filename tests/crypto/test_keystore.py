"""Key file: whole, private, never overwritten, and harmless whatever its content."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from distro_node.crypto import keystore
from distro_node.crypto.identity import Identity, peer_text
from distro_node.crypto.keystore import (
    MAX_KEYSTORE_BYTES,
    KeystoreError,
    KeystoreMissing,
    PassphraseNeeded,
    WrongPassphrase,
    create_identity,
    load_identity,
    load_or_create,
    read_peer,
)
from hypothesis import given, settings
from hypothesis import strategies as st

# Private here: `_stretch`, `_write`: memory that is not to be had, and a disk that loses bytes.

GOLDEN = Path(__file__).parents[1] / "golden"
GOLDEN_PASSPHRASE = "correct horse"
GOLDEN_IDENTITY = Identity.from_seed(bytes(range(32)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "identity.key"


@pytest.fixture
def golden_plain(path: Path) -> Path:
    return put(path, (GOLDEN / "keystore_plain.json").read_bytes())


@pytest.fixture
def golden_sealed(path: Path) -> Path:
    return put(path, (GOLDEN / "keystore_sealed.json").read_bytes())


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one file for all inputs of a fuzz run."""
    return put(tmp_path_factory.mktemp("keystore") / "identity.key", b"")


@pytest.fixture
def cheap_passphrases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keystore, "_SCRYPT_DEFAULT_N", 2**14)


def put(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def spell(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, indent=2).encode() + b"\n"


def with_checksum(fields: dict[str, Any]) -> bytes:
    """Return the file of an attacker who knows the format, checksum included."""
    rest = {name: value for name, value in fields.items() if name != "checksum"}
    context = "distro-node 2026 keystore v1 checksum"
    return spell({**rest, "checksum": blake3(spell(rest), derive_key_context=context).hexdigest()})


def error_for(path: Path, passphrase: str | None = None) -> KeystoreError:
    with pytest.raises(KeystoreError) as caught:
        load_identity(path, passphrase)
    error = caught.value
    assert error.problem
    assert error.remedy
    assert str(error) == error.problem
    return error


def forbid_scrypt(*_: object, **__: object) -> Scrypt:
    raise AssertionError("scrypt ran before the file was found to be whole")


# What a file is and stays


@pytest.mark.usefixtures("cheap_passphrases")
@pytest.mark.parametrize("passphrase", [None, "secret", "p" * 1000, "\udcff"])
def test_what_is_created_is_loaded(path: Path, passphrase: str | None) -> None:
    created = create_identity(path, passphrase)
    assert load_identity(path, passphrase).seed == created.seed
    assert load_or_create(str(path), passphrase).peer == created.peer
    assert read_peer(path) == created.peer
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.key"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (created.seed.hex() in path.read_text()) == (passphrase is None)


def test_load_or_create_creates_once(path: Path) -> None:
    first = load_or_create(path, None)
    content = path.read_bytes()
    assert load_or_create(path, None).peer == first.peer
    assert path.read_bytes() == content


@pytest.mark.usefixtures("cheap_passphrases")
def test_two_files_with_one_passphrase_have_nothing_in_common(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "other"):
        create_identity(tmp_path / name, "secret")
        keys.append(json.loads((tmp_path / name).read_text())["key"])
    assert all(keys[0][name] != keys[1][name] for name in ("salt", "nonce", "sealed"))


def test_the_plain_format_is_frozen(golden_plain: Path) -> None:
    assert load_identity(golden_plain, None).seed == GOLDEN_IDENTITY.seed
    assert load_identity(golden_plain, "not looked at").seed == GOLDEN_IDENTITY.seed
    assert read_peer(golden_plain) == GOLDEN_IDENTITY.peer


def test_the_sealed_format_is_frozen(golden_sealed: Path) -> None:
    assert load_identity(golden_sealed, GOLDEN_PASSPHRASE).seed == GOLDEN_IDENTITY.seed
    assert read_peer(golden_sealed) == GOLDEN_IDENTITY.peer


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
def test_the_mode_does_not_depend_on_the_umask(path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        create_identity(path, None)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# Passphrases


@pytest.mark.parametrize("passphrase", [None, ""])
def test_a_missing_passphrase_is_asked_for(golden_sealed: Path, passphrase: str | None) -> None:
    assert type(error_for(golden_sealed, passphrase)) is PassphraseNeeded


@pytest.mark.parametrize("passphrase", ["wrong", "correct horse ", "Correct horse", "\0"])
def test_a_wrong_passphrase_is_distinguished_from_damage(
    golden_sealed: Path, passphrase: str
) -> None:
    assert type(error_for(golden_sealed, passphrase)) is WrongPassphrase


@pytest.mark.usefixtures("cheap_passphrases")
def test_a_passphrase_is_the_same_in_either_unicode_form(path: Path) -> None:
    composed = "K\u00e4se"
    decomposed = unicodedata.normalize("NFD", composed)
    assert composed != decomposed
    created = create_identity(path, composed)
    assert load_identity(path, decomposed).peer == created.peer


def test_an_empty_passphrase_protects_nothing(path: Path) -> None:
    with pytest.raises(KeystoreError, match="empty"):
        create_identity(path, "")
    assert not path.exists()


def test_too_little_memory_is_no_wrong_passphrase(
    golden_sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(keystore, "_stretch", fail)
    error = error_for(golden_sealed, GOLDEN_PASSPHRASE)
    assert type(error) is KeystoreError
    assert "32 MiB" in error.remedy


def test_too_little_memory_makes_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(keystore, "_stretch", fail)
    with pytest.raises(KeystoreError, match="not enough memory") as caught:
        create_identity(path, "secret")
    assert "128 MiB" in caught.value.remedy
    assert list(path.parent.iterdir()) == []


# Files of earlier versions, whose passphrase is cheaper to guess


def settings_of(path: Path) -> tuple[int, int, int]:
    key = json.loads(path.read_text())["key"]
    return key["n"], key["r"], key["p"]


def test_what_is_written_today_is_as_dear_to_guess_as_advised(path: Path) -> None:
    create_identity(path, "secret")
    assert settings_of(path) == (2**17, 8, 1)


def test_an_earlier_file_opens_and_is_rewritten(golden_sealed: Path) -> None:
    before = golden_sealed.read_bytes()
    assert settings_of(golden_sealed) == (2**15, 8, 1)
    assert type(error_for(golden_sealed, "wrong")) is WrongPassphrase
    assert golden_sealed.read_bytes() == before
    assert load_identity(golden_sealed, GOLDEN_PASSPHRASE).seed == GOLDEN_IDENTITY.seed
    after = golden_sealed.read_bytes()
    assert settings_of(golden_sealed) == (2**17, 8, 1)
    assert stat.S_IMODE(golden_sealed.stat().st_mode) == 0o600
    assert [entry.name for entry in golden_sealed.parent.iterdir()] == ["identity.key"]
    # Once only.
    assert load_identity(golden_sealed, GOLDEN_PASSPHRASE).seed == GOLDEN_IDENTITY.seed
    assert golden_sealed.read_bytes() == after
    assert type(error_for(golden_sealed, "wrong")) is WrongPassphrase


def test_a_link_to_an_earlier_file_stays_a_link(golden_sealed: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(golden_sealed)
    load_identity(link, GOLDEN_PASSPHRASE)
    assert link.is_symlink()
    assert settings_of(golden_sealed)[0] == 2**17


@pytest.mark.parametrize("step", ["fchmod", "fsync", "replace", "geteuid", "memory", "content"])
def test_an_earlier_file_that_cannot_be_rewritten_stays(
    golden_sealed: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def scrypt(*, n: int, **options: Any) -> Scrypt:
        if n > 2**15:
            raise MemoryError
        return Scrypt(n=n, **options)

    if step == "memory":
        monkeypatch.setattr(keystore, "Scrypt", scrypt)
    elif step == "geteuid":
        # Another user's file: root looks at a user's node.
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    elif step == "content":
        monkeypatch.setattr(keystore, "_write", lambda path, content: put(path, content[:-9]))
    else:
        monkeypatch.setattr(os, step, fail)
    before = golden_sealed.read_bytes()
    assert load_identity(golden_sealed, GOLDEN_PASSPHRASE).seed == GOLDEN_IDENTITY.seed
    assert golden_sealed.read_bytes() == before
    assert [entry.name for entry in golden_sealed.parent.iterdir()] == ["identity.key"]


@pytest.mark.parametrize("step", ["fchmod", "fsync", "replace", "unlink"])
def test_a_kill_while_an_earlier_file_is_rewritten_costs_nothing(
    golden_sealed: Path, step: str
) -> None:
    script = (
        "import os, signal, sys\n"
        "from distro_node.crypto.keystore import load_identity\n"
        f"os.{step} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"load_identity(sys.argv[1], {GOLDEN_PASSPHRASE!r})\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(golden_sealed)], check=False)
    assert killed.returncode == -signal.SIGKILL
    for entry in golden_sealed.parent.iterdir():
        assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert load_identity(golden_sealed, GOLDEN_PASSPHRASE).seed == GOLDEN_IDENTITY.seed


# Creating: whole or not at all, and never over something


@pytest.mark.parametrize("occupant", ["file", "directory", "dangling link"])
def test_nothing_is_overwritten(path: Path, occupant: str) -> None:
    if occupant == "file":
        put(path, b"precious")
    elif occupant == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    before = path.lstat()
    with pytest.raises(KeystoreError, match="exists already"):
        create_identity(path, None)
    assert path.lstat() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.key"]
    if occupant == "file":
        assert path.read_bytes() == b"precious"
        with pytest.raises(KeystoreError, match="damaged"):
            load_or_create(path, None)
        assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_a_file_that_appears_meanwhile_is_not_overwritten(
    path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_link = os.link

    def link(source: Path, target: Path) -> None:
        put(path, b"precious")
        if not links:
            raise OSError(errno.EPERM, "not permitted")
        real_link(source, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(KeystoreError, match="exists already"):
        create_identity(path, None)
    assert path.read_bytes() == b"precious"
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.key"]


def test_a_file_system_without_hard_links_will_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "link", link)
    created = create_identity(path, None)
    assert load_identity(path, None).peer == created.peer
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.key"]


@pytest.mark.parametrize("step", ["fchmod", "fsync", "link"])
def test_a_failed_write_leaves_nothing(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(KeystoreError, match="No space left") as caught:
        create_identity(path, None)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("step", ["fchmod", "fsync", "link", "unlink"])
def test_a_kill_at_any_step_leaves_a_whole_file_or_none(path: Path, step: str) -> None:
    script = (
        "import os, signal, sys\n"
        "from distro_node.crypto.keystore import create_identity\n"
        f"os.{step} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "create_identity(sys.argv[1], None)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.exists() == (step == "unlink")
    for entry in path.parent.iterdir():
        assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    first = load_or_create(path, None)
    assert load_or_create(path, None).peer == first.peer


def test_content_and_directory_are_synchronised_in_order(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_link = os.fsync, os.link

    def fsync(descriptor: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        real_fsync(descriptor)

    def link(source: Path, target: Path) -> None:
        steps.append("name")
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    create_identity(path, None)
    assert steps == ["content", "name", "directory"]


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeystoreError, match="could not be written: No such file") as caught:
        load_or_create(tmp_path / "missing" / "identity.key", None)
    assert "directory" in caught.value.remedy


# Reading invalid key files


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610, 0o601, 0o602, 0o777])
def test_a_file_open_to_others_is_refused(golden_plain: Path, mode: int) -> None:
    golden_plain.chmod(mode)
    error = error_for(golden_plain)
    assert f"{mode:04o}" in error.problem
    assert f"chmod 600 {golden_plain}" in error.remedy
    with pytest.raises(KeystoreError, match="open to other users"):
        read_peer(golden_plain)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_the_owners_own_bits_are_his_affair(golden_plain: Path, mode: int) -> None:
    golden_plain.chmod(mode)
    assert load_identity(golden_plain, None).peer == GOLDEN_IDENTITY.peer


def test_what_is_not_there_is_missing(path: Path) -> None:
    assert type(error_for(path)) is KeystoreMissing
    with pytest.raises(KeystoreMissing):
        read_peer(path)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    assert "is not a file" in error_for(pipe).problem
    assert "directory" in error_for(tmp_path).problem
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "could not be read" in error_for(loop).problem
    assert "could not be read" in error_for(pipe / "below").problem


def test_a_large_file_is_refused(path: Path) -> None:
    put(path, b"[" * MAX_KEYSTORE_BYTES)
    assert "not JSON" in error_for(path).problem
    put(path, b" " * (MAX_KEYSTORE_BYTES + 1))
    assert "larger than" in error_for(path).problem
    with open(path, "r+b") as file:
        file.truncate(1 << 32)
    assert "larger than" in error_for(path).problem


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"\xff", b"-----BEGIN", b"1e999"])
def test_a_file_of_something_else_is_refused(path: Path, content: bytes) -> None:
    put(path, content)
    error_for(path)
    with pytest.raises(KeystoreError):
        read_peer(path)


@pytest.mark.parametrize("name", ["keystore_plain.json", "keystore_sealed.json"])
def test_every_damaged_byte_is_noticed(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keystore, "Scrypt", forbid_scrypt)
    good = (GOLDEN / name).read_bytes()
    for place in range(len(good)):
        # The lowest bit, the one between capitals and small letters, the one outside of ASCII.
        for value in {good[place] ^ 1 << bit for bit in (0, 5, 7)} | {0, ord("0")}:
            changed = bytearray(good)
            changed[place] = value
            if bytes(changed) == good:
                continue
            error = error_for(put(path, bytes(changed)), GOLDEN_PASSPHRASE)
            assert type(error) is KeystoreError, "damage is not a wrong passphrase"
            with pytest.raises(KeystoreError):
                read_peer(path)


@pytest.mark.parametrize("name", ["keystore_plain.json", "keystore_sealed.json"])
def test_every_cut_and_any_extension_is_noticed(path: Path, name: str) -> None:
    good = (GOLDEN / name).read_bytes()
    for end in range(len(good)):
        error_for(put(path, good[:end]), GOLDEN_PASSPHRASE)
    for more in (b"\n", b" ", b"\0", good):
        error_for(put(path, good + more), GOLDEN_PASSPHRASE)
        error_for(put(path, more + good), GOLDEN_PASSPHRASE)


def test_other_spellings_of_a_good_file_are_refused(path: Path) -> None:
    good = (GOLDEN / "keystore_plain.json").read_text()
    fields = json.loads(good)
    spellings = [
        json.dumps(fields),
        good.replace("\n", "\r\n"),
        good.replace('"format"', '"\\u0066ormat"'),
        good.replace('  "version": 1,\n', '  "version": 1,\n  "version": 1,\n'),
        good.replace('"version": 1', '"version": 1.0'),
        json.dumps(dict(sorted(fields.items())), indent=2) + "\n",
    ]
    for spelling in spellings:
        assert spelling != good
        error_for(put(path, spelling.encode()))


def sealed_variants() -> dict[str, dict[str, Any]]:
    """Return files with a valid checksum and invalid content."""
    good = json.loads((GOLDEN / "keystore_sealed.json").read_text())
    key = good["key"]
    peer = peer_text(Identity.from_seed(bytes(32)).peer)

    def key_with(**changes: Any) -> dict[str, Any]:
        return {**good, "key": {**key, **changes}}

    return {
        "much memory": key_with(n=2**40),
        "more memory than allowed": key_with(n=2**18),
        "n of zero": key_with(n=0),
        "n no power of two": key_with(n=32769),
        "negative n": key_with(n=-1),
        "n a float": key_with(n=32768.0),
        "n true": key_with(n=True),
        "n a text": key_with(n="32768"),
        "n a list": key_with(n=[]),
        "large r": key_with(r=2**20),
        "r a float": key_with(r=8.0),
        "large p": key_with(p=2**20),
        "p true": key_with(p=True),
        "short salt": key_with(salt=key["salt"][:-2]),
        "odd salt": key_with(salt=key["salt"][:-1]),
        "upper-case salt": key_with(salt=key["salt"].upper()),
        "spaced salt": key_with(salt=" " + key["salt"][1:]),
        "salt a number": key_with(salt=5),
        "long nonce": key_with(nonce=key["nonce"] + "00"),
        "no nonce": {**good, "key": {n: v for n, v in key.items() if n != "nonce"}},
        "short seal": key_with(sealed=key["sealed"][:-32]),
        "unknown kdf": key_with(kdf="argon2"),
        "kdf a list": key_with(kdf=["scrypt"]),
        "extra field in the key": key_with(more=1),
        "plain with scrypt's fields": key_with(kdf="none"),
        "key a list": {**good, "key": [key]},
        "key null": {**good, "key": None},
        "peer of 52 letters": {**good, "peer": "1" * 52},
        "peer a list of 52": {**good, "peer": ["1"] * 52},
        "peer null": {**good, "peer": None},
        "peer a surrogate": {**good, "peer": "\ud800" * 52},
        "extra field": {**good, "more": 1},
        "no peer": {n: v for n, v in good.items() if n != "peer"},
        "version 2": {**good, "version": 2},
        "version a float": {**good, "version": 1.0},
        "version true": {**good, "version": True},
        "another format": {**good, "format": "distro-node wallet"},
        "deep key": {**good, "key": json.loads("[" * 900 + "]" * 900)},
        "another peer, seal for the first": {**good, "peer": peer},
        "weaker scrypt": key_with(n=2**14),
        "another salt": key_with(salt="00" * 16),
        "another nonce": key_with(nonce="00" * 12),
        "another seal": key_with(sealed="00" * 48),
    }


@pytest.mark.parametrize("name", sealed_variants())
def test_a_right_checksum_vouches_for_nothing(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = with_checksum(sealed_variants()[name])
    put(path, content)
    authenticated = name.startswith(("another ", "weaker ")) and name != "another format"
    if not authenticated:
        monkeypatch.setattr(keystore, "Scrypt", forbid_scrypt)
    error = error_for(path, GOLDEN_PASSPHRASE)
    # A change to authenticated data looks like a wrong passphrase.
    assert isinstance(error, WrongPassphrase) == authenticated


def test_the_helper_makes_good_files(path: Path) -> None:
    fields = json.loads((GOLDEN / "keystore_sealed.json").read_text())
    assert with_checksum(fields) == (GOLDEN / "keystore_sealed.json").read_bytes()
    put(path, with_checksum({**fields, "checksum": ""}))
    assert load_identity(path, GOLDEN_PASSPHRASE).peer == GOLDEN_IDENTITY.peer


def test_a_plain_file_that_names_another_peer_is_refused(path: Path) -> None:
    fields = json.loads((GOLDEN / "keystore_plain.json").read_text())
    other = peer_text(Identity.from_seed(bytes(32)).peer)
    put(path, with_checksum({**fields, "peer": other}))
    assert "does not belong to the peer" in error_for(path).problem


def test_no_error_shows_the_seed(golden_plain: Path) -> None:
    fields = json.loads(golden_plain.read_text())
    fields["peer"] = peer_text(Identity.from_seed(bytes(32)).peer)
    error = error_for(put(golden_plain, with_checksum(fields)))
    assert fields["key"]["seed"] not in error.problem + error.remedy + repr(error)


# Any bytes give the identity or the one error


def load_or_the_one_error(path: Path, content: bytes, passphrase: str | None) -> Identity | None:
    put(path, content)
    try:
        peer = read_peer(path)
    except KeystoreError as error:
        if not (error.problem and error.remedy):
            raise
        peer = None
    try:
        identity = load_identity(path, passphrase)
    except KeystoreError as error:
        if not (error.problem and error.remedy):
            raise
        return None
    assert identity.peer == peer
    return identity


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.binary(max_size=MAX_KEYSTORE_BYTES + 10))
def test_any_bytes_give_the_one_error(scratch: Path, content: bytes) -> None:
    assert load_or_the_one_error(scratch, content, None) is None


@settings(deadline=None)
@given(json_values)
def test_any_json_gives_the_one_error(scratch: Path, value: Any) -> None:
    content = json.dumps(value, indent=2).encode()
    assert load_or_the_one_error(scratch, content, None) is None


@settings(deadline=None)
@given(
    st.sampled_from(["keystore_plain.json", "keystore_sealed.json"]),
    st.sampled_from(["format", "version", "peer", "key"]),
    st.sampled_from(["kdf", "n", "r", "p", "salt", "nonce", "sealed", "seed", None]),
    json_values,
)
def test_any_value_of_any_field_gives_the_one_error(
    scratch: Path, name: str, outer: str, inner: str | None, value: Any
) -> None:
    fields = json.loads((GOLDEN / name).read_text())
    if outer == "key" and inner is not None:
        fields["key"][inner] = value
    else:
        fields[outer] = value
    # Without a passphrase, scrypt does not run, and everything before it does.
    identity = load_or_the_one_error(scratch, with_checksum(fields), None)
    assert identity is None or identity.seed == GOLDEN_IDENTITY.seed
