"""Addresses of the dashboard page, of the metrics and of the model: bound sockets, TLS certificate, and
the link with which the node's owner controls the node through the page."""

from __future__ import annotations

import errno
import logging
import secrets
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from ..errors import ExitCode, UserError, address_missing
from ..settings.components import DashboardSettings
from ..settings.values import DEFAULT_METRICS_ADDRESS
from ..util.host_names import is_loopback, openable_host
from ..util.operating_system import reuse_address
from ..util.regular_files import open_regular
from .access_control import AccessGuard

_log = logging.getLogger(__name__)

_BACKLOG = 64


@dataclass(frozen=True)
class Address:
    """An address to serve at, already bound, so that its port is known."""

    url: str
    guard: AccessGuard
    listeners: Sequence[trio.SocketListener]
    tls: ssl.SSLContext | None

    @property
    def link(self) -> str:
        """The link with the token that gives control. Browsers send the part after # to no server."""
        return f"{self.url}#token={self.guard.token}"

    def close(self) -> None:
        """Release the port."""
        for listener in self.listeners:
            listener.socket.close()


def url_and_token_link(address: Address | None) -> dict[str, Any]:
    """Return the dashboard page's URL and its link with the token, for the owner of the data
    directory."""
    return {"url": address and address.url, "link": address and address.link}


@dataclass(frozen=True, kw_only=True)
class Purpose:
    """What is served at an address, for error messages."""

    what: str
    option: str
    """The command-line option that sets the address."""
    example: str
    tls: tuple[str, str, str] = ("", "", "")
    """The options that give a certificate and its key, and that allow to do without."""
    off: bool = True
    """Whether the option may be `off`."""

    @property
    def otherwise(self) -> str:
        """The end of a remedy that names another address."""
        return ", or off" if self.off else ""


@dataclass(frozen=True, kw_only=True)
class Encryption:
    """Whether an address is served over TLS, or may be served without at addresses that others reach."""

    certificate: Path | None = None
    key: Path | None = None
    plain: bool = False


_PAGE = Purpose(
    what="the page",
    option="--dashboard",
    example="127.0.0.1:9465",
    tls=("--dashboard-cert", "--dashboard-key", "--dashboard-plain"),
)
_METRICS = Purpose(what="metrics", option="--metrics-addr", example="127.0.0.1:9464")
_MODEL = Purpose(
    what="the model",
    option="--address",
    example="127.0.0.1:9467",
    tls=("--tls-cert", "--tls-key", "--plain"),
    off=False,
)


def open_metrics_address(address: tuple[str, int]) -> Address:
    """Bind the address of the metrics, which anyone who reaches it may read: Prometheus has no token.

    Port 0 takes any free port. If the default address is in use, any free port is taken as well, so that
    a second node on this machine needs no option. Raises `UserError` with `ExitCode.PORT_IN_USE` if
    another program listens at an address that is not the default one, with `ExitCode.ADDRESS_MISSING` if
    this machine does not have the address, and with `ExitCode.BAD_ADDRESS` if it is invalid.
    """
    host, port = address
    try:
        return _address(host, _bind(host, port, _METRICS), tls=None, free_reading=True)
    except UserError as error:
        if error.code is not ExitCode.PORT_IN_USE or address != DEFAULT_METRICS_ADDRESS:
            raise
    free_address = _address(host, _bind(host, 0, _METRICS), tls=None, free_reading=True)
    _log.warning("port %d is in use: the metrics are at %smetrics", port, free_address.url)
    return free_address


def open_address(settings: DashboardSettings) -> Address | None:
    """Bind the dashboard page's address, and return None if the page is off. If the port is taken, log
    that and bind a free port.

    Raises `UserError` with `ExitCode.ADDRESS_MISSING` if this machine does not have the address, and
    with `ExitCode.BAD_ADDRESS` if the address is invalid, if others can reach it and there is neither
    `plain` nor a certificate, or if the certificate is unusable.
    """
    if settings.address is None:
        return None
    host, port = settings.address
    encryption = Encryption(
        certificate=settings.certificate, key=settings.key, plain=settings.allow_plain
    )
    tls = _tls(host, encryption, _PAGE)
    try:
        found = _bind(host, port, _PAGE)
    except UserError as error:
        if error.code is not ExitCode.PORT_IN_USE:
            raise
        found = _bind(host, 0, _PAGE)
        _log.warning("port %d is in use: the page is served at another port", port)
    return _address(host, found, tls=tls, free_reading=is_loopback(host) or settings.public)


def open_model_address(
    address: tuple[str, int], encryption: Encryption, token: str | None
) -> Address:
    """Bind the address at which a model is served. With a `token`, or at an address that others reach,
    a request needs the token; without a given one it is drawn.

    Raises `UserError` as `open_address` does, and with `ExitCode.PORT_IN_USE` if the port is taken,
    because programs are configured with it.
    """
    host, port = address
    tls = _tls(host, encryption, _MODEL)
    free = token is None and is_loopback(host)
    return _address(host, _bind(host, port, _MODEL), tls=tls, free_reading=free, token=token)


def _tls(host: str, encryption: Encryption, purpose: Purpose) -> ssl.SSLContext | None:
    """Return the context for TLS; None to serve without. Raises `UserError` (`BAD_ADDRESS`)."""
    tls = _context(encryption, purpose)
    certificate, key, plain = purpose.tls
    if tls is None and not is_loopback(host):
        if not encryption.plain:
            raise UserError(
                ExitCode.BAD_ADDRESS,
                f"at {host}, others in the network could read what you and {purpose.what} send to "
                "each other",
                f"give a certificate with {certificate} and {key}, serve it at 127.0.0.1, or allow "
                f"it with {plain}",
            )
        _log.warning(
            "%s is served without encryption at %s: others in the network can read it",
            purpose.what,
            host,
        )
    return tls


def _address(
    host: str,
    sockets: list[socket.socket],
    *,
    tls: ssl.SSLContext | None,
    free_reading: bool,
    token: str | None = None,
) -> Address:
    scheme = "http" if tls is None else "https"
    return Address(
        url=f"{scheme}://{_bracketed(openable_host(host))}:{sockets[0].getsockname()[1]}/",
        guard=AccessGuard(
            host=host,
            token=secrets.token_urlsafe(32) if token is None else token,
            secure=tls is not None,
            free_reading=free_reading,
        ),
        listeners=[trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in sockets],
        tls=tls,
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bind(host: str, port: int, purpose: Purpose) -> list[socket.socket]:
    """Return sockets bound to every address of the host, all at one port. Raises `UserError` if one of
    them cannot be bound."""
    try:
        return _bound_sockets(host, port)
    except OSError as error:
        raise _bind_error(host, port, purpose, error) from error


def _bound_sockets(host: str, port: int) -> list[socket.socket]:
    kinds = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(kinds):
            each = socket.socket(family, kind, protocol)
            found.append(each)
            reuse_address(each)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind((address[0], port, *address[2:]))
            each.listen(_BACKLOG)
            port = each.getsockname()[1]
    except OSError:
        for each in found:
            each.close()
        raise
    return found


def _context(encryption: Encryption, purpose: Purpose) -> ssl.SSLContext | None:
    certificate, key = encryption.certificate, encryption.key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UserError(
            ExitCode.BAD_ADDRESS,
            "a certificate needs its key, and a key its certificate",
            "give both {} and {}".format(*purpose.tls),
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        for path in (certificate, key):
            # A named pipe would block the library.
            open_regular(path).close()
        # Because of the empty password an encrypted key is an error instead of a prompt on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise _certificate_error(certificate, key, error) from error
    return context


def _certificate_error(certificate: Path, key: Path, error: OSError) -> UserError:
    why = error.strerror or "they are no pair of a certificate and a key"
    return UserError(
        ExitCode.BAD_ADDRESS,
        f"the certificate {certificate} and the key {key} cannot be used: {why}",
        "give two files in PEM format that belong together, the key without a passphrase",
    )


def _bind_error(host: str, port: int, purpose: Purpose, error: OSError) -> UserError:
    problem = f"cannot serve {purpose.what} at {_bracketed(host)}:{port}"
    if error.errno == errno.EADDRINUSE:
        return UserError(
            ExitCode.PORT_IN_USE,
            f"{problem}: the port is in use",
            f"another node may be running here; choose another port with {purpose.option}"
            f"{purpose.otherwise}",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return address_missing(problem)
    return UserError(
        ExitCode.BAD_ADDRESS,
        f"{problem}: {error.strerror or error}",
        f"give {purpose.option} an address of this machine, such as {purpose.example}"
        f"{purpose.otherwise}",
    )
