"""Downloads from servers that answer, lie, stall or redirect."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from distro_node.node.network import web
from distro_node.node.network.web import AddressScope, Web, WebError
from web_server import Answer, WebServer, Write, make_certificate


class Service(WebServer):
    """Server whose answers are set by path."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        super().__init__(lambda path: self.answers[path])


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service()
    with server.serving():
        yield server


async def get(url: str) -> bytes:
    return await Web(AddressScope.AS_NAMED).get(url, 1000)


def endless(write: Write) -> None:
    while True:
        write(b"1" * 65536)


@pytest.mark.parametrize(
    ("status", "headers", "write", "why"),
    [
        (200, {}, endless, "more than"),
        (200, {"content-length": "100"}, lambda write: write(b"5"), "peer closed"),
        (404, {}, lambda write: write(b"5"), "404"),
        (302, {"location": "file:///etc/passwd"}, lambda write: None, "other than HTTP"),
        (302, {"location": "/"}, lambda write: None, "too many times"),
        (302, {}, lambda write: None, "302"),
    ],
)
async def test_a_server_that_lies_ends_as_an_error(
    service: Service,
    status: int,
    headers: dict[str, str],
    write: Callable[[Write], object],
    why: str,
) -> None:
    service.answers["/"] = (status, headers, write)
    with pytest.raises(WebError, match=why):
        await get(service.url + "/")


def drip(write: Write) -> None:
    for _ in range(3000):
        write(b" ")
        time.sleep(0.02)


async def test_a_callers_deadline_ends_a_server_that_drips(service: Service) -> None:
    service.answers["/"] = (200, {"content-length": "900"}, drip)
    with pytest.raises(trio.TooSlowError), trio.fail_after(1.0):
        await get(service.url + "/")


async def test_nobody_there() -> None:
    with pytest.raises(WebError):
        await get("http://127.0.0.1:1/")


async def test_the_systems_authorities_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A network that inspects TLS has an authority of its own.
    certificate = make_certificate(tmp_path)
    server = WebServer(lambda path: (200, {}, lambda write: write(b"5")), certificate)
    with server.serving():
        with pytest.raises(WebError, match="certificate is not trusted: self-signed"):
            await get(server.url + "/")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert await get(server.url + "/") == b"5"


async def test_a_redirect_leads_into_a_private_network_only_from_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answers["/router"] = (200, {}, lambda write: write(b"5"))
    service.answers["/"] = (302, {"location": "/router"}, lambda write: None)
    assert await get(service.url + "/") == b"5"
    # As if the owner's URL led to the public internet, and its redirect back home.
    public = iter([True])
    real = web.is_public
    monkeypatch.setattr(web, "is_public", lambda a: next(public, False) or real(a))
    service.asked.clear()
    with pytest.raises(WebError, match="not an address of the public internet"):
        await get(service.url + "/")
    assert service.asked == ["/"]
