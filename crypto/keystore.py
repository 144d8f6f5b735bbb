"""Keystore: the file that holds a peer's identity, optionally under a passphrase.

The file is written whole or not at all, readable only by its owner, and never overwritten except with
the same identity under a passphrase that costs more to guess. Reading it back gives the identity or a
`KeystoreError` that says what to do, whatever its content.

It is a JSON object in one fixed spelling: `format`, `version`, `peer` (so that a peer's id is known
without the passphrase), `key`, `checksum`. The key is either `{"kdf": "none", "seed"}`, where
nothing but the file's mode protects it, or `{"kdf": "scrypt", "n", "r", "p", "salt", "nonce",
"sealed"}`: the seed under ChaCha20-Poly1305, with every field before `sealed` as associated data.
The checksum distinguishes damage from a wrong passphrase and protects against no attacker.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import unicodedata
from pathlib import Path
from typing import Any

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from .identity import SEED_BYTES, Identity, PeerId, peer_from_text, peer_text

# An honest file has about 600 bytes.
MAX_KEYSTORE_BYTES = 4096

_FORMAT = "distro-node identity"
_VERSION = 1
# Each guess of a passphrase costs 128 MiB (128·n·r bytes) and some tenths of a second: the setting that
# OWASP's "Password Storage Cheat Sheet" recommends. A file may not ask for more, so that a hostile one
# is cheap to refuse, nor for less than 16 MiB; earlier versions wrote 32 MiB.
_SCRYPT_DEFAULT_N = 2**17
_SCRYPT_R = 8
_SCRYPT_P = 1
_SCRYPT_N = (2**14, 2**15, 2**16, 2**17)
_SALT_BYTES = 16
_NONCE_BYTES = 12
_TAG_BYTES = 16
_CHECKSUM_CONTEXT = "distro-node 2026 keystore v1 checksum"


class KeystoreError(ValueError):
    """Error of an unusable key file: `problem` says why, `remedy` what the user can do about it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class KeystoreMissing(KeystoreError):
    """Error: the key file does not exist yet."""


class WrongPassphrase(KeystoreError):
    """Error: the passphrase does not open the file."""


class PassphraseNeeded(KeystoreError):
    """Error: the file is protected by a passphrase, and none was given."""


def load_identity(path: str | Path, passphrase: str | None) -> Identity:
    """Read the identity in `path`. If the key has no passphrase, a given one is ignored.

    A file whose passphrase is cheaper to guess than those written today is rewritten with today's
    settings, if this user owns it and there is space and memory. Raises `KeystoreMissing`,
    `PassphraseNeeded`, `WrongPassphrase`, or plain `KeystoreError` if the file cannot be read, is
    damaged, too large, or open to others. Takes some tenths of a second and 128 MiB if there is a
    passphrase.
    """
    path = Path(path)
    content = _read(path)
    peer, key = content["peer"], content["key"]
    if key["kdf"] == "none":
        seed = bytes.fromhex(key["seed"])
    elif not passphrase:
        raise PassphraseNeeded(
            f"the key in {path} is protected by a passphrase, and none was given",
            "give the passphrase that it was created with",
        )
    else:
        seed = _unseal(path, content, passphrase)
    identity = Identity.from_seed(seed)
    if peer_text(identity.peer) != peer:
        raise _damaged(path, "the secret key does not belong to the peer id in it")
    if passphrase and key["kdf"] == "scrypt" and key["n"] < _SCRYPT_DEFAULT_N:
        _strengthen(path, identity, passphrase)
    return identity


def read_peer(path: str | Path) -> PeerId:
    """Read which peer `path` belongs to; needs no passphrase.

    The answer is the file's claim: only `load_identity` proves it. Raises `KeystoreError`.
    """
    return peer_from_text(_read(Path(path))["peer"])


def create_identity(path: str | Path, passphrase: str | None) -> Identity:
    """Create a new identity and write it to `path`, whose directory must exist.

    The key is on disk, and has been read back from there, when this returns. Raises `KeystoreError`
    if there is a file already (it is left unchanged), if the passphrase is empty, or if the file
    cannot be written.
    """
    path = Path(path)
    if passphrase is not None and not passphrase:
        raise KeystoreError(
            "the passphrase is empty", "give a passphrase, or none for a key protected by file mode"
        )
    try:
        content = _render(Identity.generate(), passphrase)
        _write_new(path, content)
    except MemoryError:
        raise _no_memory(path, _SCRYPT_DEFAULT_N) from None
    except FileExistsError:
        raise KeystoreError(
            f"{path} exists already", "keep that identity, or move the file away first"
        ) from None
    except OSError as error:
        raise KeystoreError(
            f"the key file {path} could not be written: {error.strerror}",
            "make sure that its directory exists, that you own it, and that the disk has space "
            "left",
        ) from error
    # If the file system drops modes or bytes, fail now rather than at the next start.
    return load_identity(path, passphrase)


def load_or_create(path: str | Path, passphrase: str | None) -> Identity:
    """Load the identity in `path`, or create it if the file does not exist.

    Raises what `load_identity` and `create_identity` raise: an existing but unusable file is never
    replaced.
    """
    try:
        return load_identity(path, passphrase)
    except KeystoreMissing:
        return create_identity(path, passphrase)


def _damaged(path: Path, how: str) -> KeystoreError:
    return KeystoreError(
        f"the key file {path} is damaged: {how}",
        "restore it from a backup, or move it away: then a new identity is made",
    )


def _spell(value: Any) -> bytes:
    """Return the JSON bytes of `value` in the only spelling that is accepted on reading."""
    return json.dumps(value, indent=2, ensure_ascii=True).encode("ascii") + b"\n"


def _checksum(fields: dict[str, Any]) -> str:
    return blake3(_spell(fields), derive_key_context=_CHECKSUM_CONTEXT).hexdigest()


def _associated_data(content: dict[str, Any]) -> bytes:
    """Return the file without the sealed seed and the checksum."""
    key = {name: value for name, value in content["key"].items() if name != "sealed"}
    return _spell({**{name: content[name] for name in ("format", "version", "peer")}, "key": key})


def _stretch(passphrase: str, key: dict[str, Any]) -> ChaCha20Poly1305:
    # Normalized to composed form (NFC), because keyboards and systems differ in how they send an
    # accented letter. Python represents environment bytes that are not UTF-8 as lone surrogates;
    # `surrogatepass` allows them.
    secret = unicodedata.normalize("NFC", passphrase).encode("utf-8", "surrogatepass")
    salt = bytes.fromhex(key["salt"])
    scrypt = Scrypt(salt=salt, length=32, n=key["n"], r=key["r"], p=key["p"])
    return ChaCha20Poly1305(scrypt.derive(secret))


def _render(identity: Identity, passphrase: str | None) -> bytes:
    fields: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "peer": peer_text(identity.peer),
        "key": {"kdf": "none", "seed": identity.seed.hex()},
    }
    if passphrase is not None:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        salt = secrets.token_bytes(_SALT_BYTES)
        settings = {"n": _SCRYPT_DEFAULT_N, "r": _SCRYPT_R, "p": _SCRYPT_P}
        key = {"kdf": "scrypt", **settings, "salt": salt.hex(), "nonce": nonce.hex()}
        fields["key"] = key
        cipher = _stretch(passphrase, key)
        key["sealed"] = cipher.encrypt(nonce, identity.seed, _associated_data(fields)).hex()
    return _spell({**fields, "checksum": _checksum(fields)})


def _unseal(path: Path, content: dict[str, Any], passphrase: str) -> bytes:
    key = content["key"]
    try:
        return _stretch(passphrase, key).decrypt(
            bytes.fromhex(key["nonce"]), bytes.fromhex(key["sealed"]), _associated_data(content)
        )
    except InvalidTag:
        raise WrongPassphrase(
            f"the passphrase for {path} is wrong",
            "try again; without its passphrase an identity is lost, and a new one must be made",
        ) from None
    except MemoryError:
        raise _no_memory(path, key["n"]) from None


def _no_memory(path: Path, n: int) -> KeystoreError:
    return KeystoreError(
        f"not enough memory to derive the key of {path} from its passphrase",
        f"free {128 * n * _SCRYPT_R >> 20} MiB and try again",
    )


def _strengthen(path: Path, identity: Identity, passphrase: str) -> None:
    """Rewrite the file under today's settings, or leave it unchanged."""
    path = path.resolve()
    temporary = _temporary(path)
    # Replacing another user's file would make it ours.
    with contextlib.suppress(OSError, MemoryError):
        if path.stat().st_uid != os.geteuid():
            return
        content = _render(identity, passphrase)
        try:
            _write(temporary, content)
            if _unseal(temporary, _read(temporary), passphrase) == identity.seed:
                os.replace(temporary, path)
                _sync(path.parent)
        except KeystoreError:
            # The new file does not read back as written, so keep the old one.
            return
        finally:
            temporary.unlink(missing_ok=True)


def _write_new(path: Path, content: bytes) -> None:
    """Write a new file, whole or not at all; raise `FileExistsError` if it exists.

    A process killed in between leaves a `.tmp` file with a key that nothing uses.
    """
    temporary = _temporary(path)
    try:
        _write(temporary, content)
        _rename_new(temporary, path)
    finally:
        # After a rename the file is already gone. A disk that refused the file may refuse its removal,
        # too.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    _sync(path.parent)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb", opener=_open_private) as file:
        os.fchmod(file.fileno(), 0o600)  # the umask may have taken the owner's own bits
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _rename_new(temporary: Path, path: Path) -> None:
    """Give a file its final name unless that is taken; the temporary name may remain."""
    try:
        # A hard link, because a rename would replace a file that was created in the meantime.
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # No hard links here (FAT, some network file systems): check, then rename.
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(temporary, path)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _open_without_waiting(path: str, flags: int) -> int:
    # Otherwise opening a named pipe could wait without end.
    return os.open(path, flags | os.O_NONBLOCK)


def _read(path: Path) -> dict[str, Any]:
    """Read the file and check everything that can be checked without the passphrase."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeystoreError(f"{path} is not a file", "give the path of a key file")
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise KeystoreError(
                    f"the key file {path} is open to other users (mode "
                    f"{status.st_mode & 0o777:04o})",
                    f"run `chmod 600 {path}`; if other users may have read it, make a new identity",
                )
            data = file.read(MAX_KEYSTORE_BYTES + 1)
    except FileNotFoundError:
        raise KeystoreMissing(f"there is no key file {path}", "create an identity first") from None
    except OSError as error:
        raise KeystoreError(
            f"the key file {path} could not be read: {error.strerror}",
            "make sure that you own it and may read it: `ls -l` shows owner and mode",
        ) from error
    return _parse(path, data)


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    if len(data) > MAX_KEYSTORE_BYTES:
        raise _damaged(path, f"it is larger than {MAX_KEYSTORE_BYTES} bytes")
    try:
        content = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError):
        raise _damaged(path, "it is not JSON") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise KeystoreError(
            f"{path} is not a key file of distro-node", "give the path of a key file"
        )
    if type(content.get("version")) is not int or content["version"] != _VERSION:
        raise KeystoreError(
            f"the key file {path} has a version this program does not know",
            "use the version of distro-node that wrote it, or a newer one",
        )
    problem = _problem(content, data)
    if problem is not None:
        raise _damaged(path, problem)
    return content


def _problem(content: dict[str, Any], data: bytes) -> str | None:
    """Return what is wrong with the fields; None if nothing is, so that every field can be used."""
    if list(content) != ["format", "version", "peer", "key", "checksum"]:
        return "its fields are not those of a key file"
    if not isinstance(content["peer"], str) or not isinstance(content["key"], dict):
        return "its fields have the wrong types"
    problem = _key_problem(content["key"])
    if problem is not None:
        return problem
    try:
        peer_from_text(content["peer"])
    except ValueError:
        return "its `peer` is not a peer id"
    fields = {name: value for name, value in content.items() if name != "checksum"}
    if content["checksum"] != _checksum(fields):
        return "its checksum does not match"
    # Repeated keys, other white space and other escapes are valid JSON, but not written by us.
    return None if _spell(content) == data else "its JSON is not in the form of a key file"


def _key_problem(key: dict[str, Any]) -> str | None:
    if key.get("kdf") == "none":
        settings = {}
        sizes = {"seed": SEED_BYTES}
    elif key.get("kdf") == "scrypt":
        settings = {"n": _SCRYPT_N, "r": (_SCRYPT_R,), "p": (_SCRYPT_P,)}
        sizes = {"salt": _SALT_BYTES, "nonce": _NONCE_BYTES, "sealed": SEED_BYTES + _TAG_BYTES}
    else:
        return "its key has an unknown `kdf`"
    if list(key) != ["kdf", *settings, *sizes]:
        return "the fields of its key are not those of a key file"
    for name, allowed in settings.items():
        if type(key[name]) is not int or key[name] not in allowed:
            return f"the scrypt setting {name} has a value that is not allowed"
    if not all(_is_hex(key[name], size) for name, size in sizes.items()):
        return "a field of its key is not hexadecimal, or has the wrong length"
    return None


def _is_hex(value: Any, size: int) -> bool:
    return isinstance(value, str) and len(value) == 2 * size and not value.strip("0123456789abcdef")
