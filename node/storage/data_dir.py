"""The data directory: its files, its lock, its permissions and its free space.

One process at a time works in a data directory; a second one gets an error that names the first. Only
the owner can read its content, because this includes the peer's secret key.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from ...crypto import keystore
from ...crypto.identity import Identity, PeerId
from ...protocol.wire.manifest import MAX_MANIFEST_BYTES, Manifest, SwarmId, decode_manifest
from ...protocol.wire.swarm_id import SwarmIdError, swarm_from_text, swarm_text
from ..errors import ExitCode, UserError
from ..settings.values import default_data_dir
from ..util.operating_system import lock_file, read_at, user_id, user_name, write_at
from ..util.regular_files import read_regular
from ..util.system_errors import FULL
from .atomic_write import sync
from .disk_faults import disk_full

# Enough for records, logs and a few updates; commands request further space explicitly.
MINIMUM_FREE_BYTES = 64 << 20
# How the names of scratch folders begin.
_SCRATCH = ".scratch-"


class SwarmDir:
    """The files of one swarm below the data directory. Constructing it creates nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = root / "manifest"
        self.ledger = root / "ledger"
        # How much of the ledger this node has verified.
        self.verified = root / "verified"
        # What follows from the ledger, so that a restart need not read all of it.
        self.indexes = root / "indexes"
        # The last record known to be final.
        self.final = root / "final"
        # The messages that this node has signed and must not contradict after a restart.
        self.signed = root / "votes"
        # The list of the snapshots in the blob store.
        self.snapshots = root / "snapshots.json"
        self.momentum = root / "trainer" / "momentum"
        # Code that the trainer has compiled.
        self.caches = root / "trainer-caches"
        self.history = root / "history.jsonl"
        # The member's own data, tokenised.
        self.private = root / "private"
        # Parts of sign votes (`SignVotePartStore`).
        self.sign_votes = root / "sign-votes"

    def read_manifest(self, swarm: SwarmId) -> Manifest:
        """Return the stored manifest. Raises `OSError` if it cannot be read, and `ProtocolError` if it
        is not this swarm's."""
        return decode_manifest(read_regular(self.manifest, MAX_MANIFEST_BYTES), swarm)


class DataDir:
    """The paths in a data directory. Nothing is created before `create`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.identity = root / "identity.key"
        # The number of the last start, which orders this peer's messages.
        self.starts = root / "starts"
        # How many bytes this peer has relayed.
        self.relayed = root / "relayed"
        self.lock_file = root / "daemon.lock"
        self.socket = root / "daemon.sock"
        self.blobs = root / "blobs"
        self.swarms = root / "swarms"
        self.logs = root / "logs"
        # Tokenised texts of a swarm that is being created.
        self.token_caches = root / "create"

    def command(self, arguments: str) -> str:
        """Return the command `distro-node ARGUMENTS`, with the option that selects this directory if it
        is not the default one."""
        line = f"distro-node {arguments}"
        if self.root == default_data_dir():
            return line
        return f"{line} --data-dir {shlex.quote(str(self.root))}"

    def swarm(self, swarm: SwarmId) -> SwarmDir:
        """Return the files of one swarm."""
        return SwarmDir(self.swarms / swarm_text(swarm))

    def known_swarms(self) -> list[SwarmId]:
        """Return the swarms whose manifest is here, in the order of their ids. Raises `OSError` for
        unreadable directories."""
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted(os.listdir(self.swarms)):
                with contextlib.suppress(SwarmIdError):
                    swarm = swarm_from_text(name)
                    if (self.swarms / name / "manifest").exists():
                        found.append(swarm)
        return found

    def create(self) -> None:
        """Create the directory and its parents, mode 0700, and check that it is writable.

        An existing directory keeps its mode: a home directory given by mistake must not be closed to
        others. Its content has modes of its own.

        Raises `UserError`: `DATA_DIR` if it cannot be used or belongs to another user, `DISK_FULL` if
        less than `MINIMUM_FREE_BYTES` are free.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            _check_owner(self.root)
            for part in (self.blobs, self.swarms, self.logs):
                part.mkdir(exist_ok=True, mode=0o700)
                _check_owner(part)
            # Makes the new subdirectories durable: without their entries their content would be lost.
            sync(self.root)
            if not os.access(self.root, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.root))
        except OSError as error:
            if error.errno in FULL:
                raise disk_full(self.root) from error
            problem = error.strerror
            if isinstance(error, FileExistsError):
                problem = f"{error.filename} is a file, or a link that leads nowhere"
            raise UserError(
                ExitCode.DATA_DIR,
                f"the data directory {self.root} cannot be used: {problem}",
                "give a directory that you may write to with --data-dir",
            ) from error
        self.require_free(MINIMUM_FREE_BYTES)

    def free(self) -> int:
        """Return how many bytes are free on its disk."""
        return shutil.disk_usage(self.root).free

    def require_free(self, needed: int, what: str = "the node's own files") -> None:
        """Check that `needed` bytes are free. Raises `UserError` (`DISK_FULL`)."""
        free = self.free()
        if free < needed:
            raise UserError(
                ExitCode.DISK_FULL,
                f"{what} need {size_text(needed)} in {self.root}, but only {size_text(free)} "
                "are free",
                "free some space, or give a directory on a larger disk with --data-dir",
            )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory for this process; released when the process ends, even by a crash. Scratch
        folders of earlier processes are removed.

        Raises `UserError`: `DATA_DIR_LOCKED`, naming the process that holds the lock; `DATA_DIR` or
        `DISK_FULL` if the lock file cannot be opened; `UNSUPPORTED` without locks of files.
        """
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if error.errno in FULL:
                raise disk_full(self.lock_file) from error
            raise UserError(
                ExitCode.DATA_DIR,
                f"the lock file {self.lock_file} cannot be opened: {error.strerror}",
                "make sure that you own the data directory and all files in it",
            ) from error
        try:
            if not lock_file(descriptor):
                raise self._locked(descriptor)
            os.ftruncate(descriptor, 0)
            write_at(descriptor, f"{os.getpid()}\n".encode(), 0)
            for left in self.blobs.glob(f"{_SCRATCH}*"):
                shutil.rmtree(left, ignore_errors=True)
            yield
        finally:
            # Closing releases the lock. The file stays: if it were removed, two processes could hold
            # locks on two files of the same name.
            os.close(descriptor)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a folder that is removed at the end, or by the next holder of the lock if this one is
        killed. It is on the disk of the blobs, to which its files can be moved."""
        with TemporaryDirectory(prefix=_SCRATCH, dir=self.blobs) as folder:
            yield Path(folder)

    def _locked(self, descriptor: int) -> UserError:
        # The process id is a hint for people; the file is empty until the holder has written it.
        holder = read_at(descriptor, 20, 0).decode("ascii", "replace").strip()
        who = f"process {holder}" if holder.isdigit() else "another process"
        return UserError(
            ExitCode.DATA_DIR_LOCKED,
            f"the data directory {self.root} is in use by {who}",
            f"stop that process first (`{self.command('leave')}`), or give this node another "
            "directory with --data-dir",
        )


def _check_owner(folder: Path) -> None:
    """Raise `UserError` (`DATA_DIR`) for a folder whose owner is neither this user nor root.

    Its owner may replace every file in it, the node's key included. Root can do so anywhere, and owns
    the volumes of many containers.
    """
    owner = folder.stat().st_uid
    user = user_id()
    if user is not None and owner not in (user, 0):
        raise UserError(
            ExitCode.DATA_DIR,
            f"{folder} belongs to the user {user_name(owner)}, and this program runs as "
            f"{user_name(user)}",
            "run it as that user, or give a directory of your own with --data-dir",
        )


def stored_peer(data: DataDir) -> PeerId | None:
    """Return the peer whose key file is in the data directory; None without a readable one."""
    try:
        return keystore.read_peer(data.identity)
    except (keystore.KeystoreError, OSError):
        return None


def open_identity(data: DataDir, passphrase: str | None, *, create: bool = True) -> Identity:
    """Load the peer's identity, or create one if there is none and `create` is true.

    Raises `UserError`: `WRONG_PASSPHRASE` if the passphrase is missing or wrong, `KEYSTORE` for any
    other fault of the key file.
    """
    try:
        read = keystore.load_or_create if create else keystore.load_identity
        return read(data.identity, passphrase)
    except keystore.PassphraseNeeded as error:
        raise UserError(
            ExitCode.WRONG_PASSPHRASE,
            error.problem,
            "put it into the environment variable DISTRO_NODE_PASSPHRASE, or into a file given "
            "with --passphrase-file",
        ) from None
    except keystore.KeystoreError as error:
        wrong = isinstance(error, keystore.WrongPassphrase)
        code = ExitCode.WRONG_PASSPHRASE if wrong else ExitCode.KEYSTORE
        raise UserError(code, error.problem, error.remedy) from None


def size_text(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
