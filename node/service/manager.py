"""Installing, removing and querying a node's service: the work of `distro-node service`.

An existing file that this program did not write, or that was edited, is left unchanged unless the owner
forces it; even then a copy is kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ExitCode, UserError
from ..storage.atomic_write import write_atomically
from ..util.operating_system import IS_MACOS, user_id
from .units import Manager, Service, is_ours, label, launchd_plist, systemd_unit

Run = Callable[[Sequence[str]], "ServiceCommandResult"]

_MAX_UNIT_BYTES = 1 << 20
_TIMEOUT_SECONDS = 90.0
_STOPPED = ("inactive", "failed")


@dataclass(frozen=True)
class ServiceCommandResult:
    """Exit code of a system command, and the last line that it wrote."""

    code: int
    last_line: str


@dataclass(frozen=True, kw_only=True)
class ServiceStatus:
    """State of a service."""

    file: str
    installed: bool
    edited: bool
    """Whether the file differs from how it was written."""
    state: str
    """The system's word, such as `active` or `failed`; `unknown` if it cannot be queried."""


@dataclass(frozen=True, kw_only=True)
class ServiceManager:
    """Service manager of the system, for the whole system or for one user."""

    kind: Manager
    system: bool
    folder: Path
    """The folder of its files."""
    logs: Path
    """The folder in which launchd writes a service's output."""
    run: Run

    def file(self, name: str) -> Path:
        """Return the path of the service's file."""
        ending = f"{name}.service" if self.kind == "systemd" else f"{label(name)}.plist"
        return self.folder / ending

    def content(self, service: Service) -> bytes:
        """Return the content of the service's file."""
        if self.kind == "systemd":
            return systemd_unit(service)
        return launchd_plist(service, self.logs / f"{label(service.name)}.log")

    def install(self, service: Service, *, force: bool) -> Path:
        """Write the file and start the service, now and whenever the system starts or its user logs in.

        Raises `UserError` (`SERVICE`) if the file was edited (without `force`) or cannot be written, or
        if the service manager refuses.
        """
        path, content = self.file(service.name), self.content(service)
        try:
            self._keep_edited(path, force)
            path.parent.mkdir(parents=True, exist_ok=True)
            if self.kind == "launchd":
                self.logs.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
            # The system's manager must be able to read the file, whatever the installing user's umask.
            path.chmod(0o644)
        except OSError as error:
            raise self._not_written(path, error) from None
        for command in self._starting(service.name):
            self._run_or_raise(command, f"the service is written to {path}, but not started")
        return path

    def remove(self, name: str, *, force: bool) -> Path:
        """Stop the service and remove its file; the node's data stays. Raises `UserError` (`SERVICE`) if
        there is no such service, if (without `force`) its file was edited or it may still run, or if the
        file cannot be removed."""
        path = self.file(name)
        if not os.path.lexists(path):
            raise UserError(
                ExitCode.SERVICE,
                f"there is no service {name!r}: {path} does not exist",
                "see `distro-node service status`; a second one has a --name, and one of the whole "
                "system needs --system",
            )
        try:
            self._keep_edited(path, force)
        except OSError as error:
            raise self._not_written(path, error) from None
        stopping = self._stopping(name)
        result = self.run(stopping)
        # A service that has failed or was never started can be removed as well.
        if result.code and not force and self.status(name).state not in _STOPPED:
            raise UserError(
                ExitCode.SERVICE,
                f"the service may still run: {' '.join(stopping)}: "
                f"{result.last_line or f'exit code {result.code}'}",
                "fix what the system reports, or remove the file all the same with --force",
            )
        try:
            path.unlink()
        except OSError as error:
            raise self._not_written(path, error) from None
        if self.kind == "systemd":
            self.run(self._systemctl("daemon-reload"))
        return path

    def status(self, name: str) -> ServiceStatus:
        """Return the service's state. Raises `UserError` (`SERVICE`) if reading it is not permitted."""
        path = self.file(name)
        try:
            content = _content(path)
        except OSError as error:
            raise self._not_written(path, error) from None
        if self.kind == "systemd":
            state_line = self.run(self._systemctl("is-active", path.name)).last_line
            state = state_line if state_line.isalpha() else "unknown"
        else:
            code = self.run(("launchctl", "print", f"{self._domain()}/{label(name)}")).code
            state = "active" if code == 0 else "inactive"
        return ServiceStatus(
            file=str(path),
            installed=content is not None,
            edited=content is not None and not is_ours(content),
            state=state,
        )

    def _keep_edited(self, path: Path, force: bool) -> None:
        """Raise `UserError` (`SERVICE`) for an edited file; with `force`, make a backup of it."""
        content = _content(path)
        if content is None or is_ours(content):
            return
        if not force:
            raise UserError(
                ExitCode.SERVICE,
                f"{path} was edited or not written by distro-node, and is left unchanged",
                "give the service another --name, or add --force: the old file is then kept next "
                f"to it, as {_backup_path(path).name}",
            )
        shutil.copy2(path, _backup_path(path))

    def _starting(self, name: str) -> list[tuple[str, ...]]:
        """Return the commands that start the service. On macOS, stop it first."""
        if self.kind == "systemd":
            unit = self.file(name).name
            return [
                self._systemctl("daemon-reload"),
                self._systemctl("enable", unit),
                # A running service is restarted with the new file.
                self._systemctl("restart", unit),
            ]
        # launchd refuses to load a service twice.
        self.run(self._stopping(name))
        return [("launchctl", "bootstrap", self._domain(), str(self.file(name)))]

    def _stopping(self, name: str) -> tuple[str, ...]:
        if self.kind == "systemd":
            return self._systemctl("disable", "--now", self.file(name).name)
        return ("launchctl", "bootout", f"{self._domain()}/{label(name)}")

    def _systemctl(self, *command: str) -> tuple[str, ...]:
        return ("systemctl", *(() if self.system else ("--user",)), *command)

    def _domain(self) -> str:
        return f"gui/{user_id()}"

    def _run_or_raise(self, command: Sequence[str], otherwise: str) -> None:
        result = self.run(command)
        if result.code:
            raise UserError(
                ExitCode.SERVICE,
                f"{otherwise}: {' '.join(command)}: {result.last_line or f'exit code {result.code}'}",
                "fix what the system reports, then run that command",
            )

    def _not_written(self, path: Path, error: OSError) -> UserError:
        """Return the error for a file that cannot be read, written or removed."""
        return UserError(
            ExitCode.SERVICE,
            f"{path} cannot be used: {error.strerror}",
            "services of the whole system need administrator's rights: use sudo, or leave out --system"
            if self.system
            else "make sure that you may write to the folder",
        )


def this_manager(*, system: bool) -> ServiceManager:
    """Return this computer's service manager. Raises `UserError`: `SERVICE` if it has no supported one,
    `USAGE` if `system` is requested on macOS."""
    if IS_MACOS:
        if system:
            raise UserError(
                ExitCode.USAGE,
                "on macOS a node can only be a service of its user",
                "leave out --system",
            )
        library = Path.home() / "Library"
        return ServiceManager(
            kind="launchd",
            system=False,
            folder=library / "LaunchAgents",
            logs=library / "Logs",
            run=run_quietly,
        )
    if shutil.which("systemctl") is None:
        raise UserError(
            ExitCode.SERVICE,
            "this system has neither systemd nor launchd",
            "`--show` prints the systemd unit, as a template for this system's service manager",
        )
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    own = Path(config) / "systemd" / "user"
    return ServiceManager(
        kind="systemd",
        system=system,
        folder=Path("/etc/systemd/system") if system else own,
        logs=Path(),
        run=run_quietly,
    )


def run_quietly(command: Sequence[str]) -> ServiceCommandResult:
    """Run a system command and return its result; one that is missing, or does not end in time, counts
    as failed."""
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return ServiceCommandResult(127, str(error))
    lines = result.stdout.strip().splitlines()
    return ServiceCommandResult(result.returncode, lines[-1] if lines else "")


def _content(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_UNIT_BYTES)
    except FileNotFoundError:
        return None


def _backup_path(path: Path) -> Path:
    # Neither manager reads files with this suffix.
    return path.with_name(f"{path.name}.before")
