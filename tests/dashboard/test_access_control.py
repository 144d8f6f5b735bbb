"""Read and control access: rebinding, requests from other pages, the token, addresses that others
reach."""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
import urllib.parse
from pathlib import Path

import pytest
import trio
from dashboard.support import PATIENCE_SECONDS, served
from distro_node.node.dashboard.access_control import AccessGuard
from distro_node.node.dashboard.address import open_address
from distro_node.node.dashboard.http import Request, Response, text_response
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.settings.components import DashboardSettings
from distro_node.node.util.host_names import host_name, is_loopback, openable_host
from web_server import make_certificate


def guard(host: str = "127.0.0.1", **changes: bool) -> AccessGuard:
    settings = {"secure": False, "free_reading": True} | changes
    return AccessGuard(host=host, token="t" * 43, **settings)


def request(path: str = "/api/status", **headers: str) -> Request:
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method="GET", path=path, headers=said)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9465", "localhost:9465", "LOCALHOST", "[::1]:9465", "127.0.0.1:80"]
)
def test_our_own_names_are_answered(host: str) -> None:
    assert guard().refusal(request(host=host)) is None
    same = request(host=host, origin=f"http://{host}", sec_fetch_site="same-origin")
    assert guard().refusal(same) is None


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "evil.example:9465", "127.0.0.1.evil.example:9465", "192.0.2.1:9465"),
        *(
            "localhost.evil.example",
            "127.0.0.1:99999",
            "127.0.0.1:9465:1",
            "user@localhost",
            "[::1",
        ),
        *("0.0.0.0:9465", "localhost\x1b", "2130706433"),
    ],
)
def test_a_name_that_was_bound_again_is_not_answered(host: str) -> None:
    refusal = guard().refusal(request("/", host=host))
    assert refusal is not None
    assert refusal.status == 403


def test_at_other_addresses_any_address_is_ours_and_no_name_but_the_one_given() -> None:
    for at in ("0.0.0.0", "192.0.2.7", "node.example"):
        assert guard(at).refusal(request(host="192.0.2.7:9465")) is None
        assert guard(at).refusal(request(host="localhost:9465")) is None
        assert guard(at).refusal(request(host="evil.example:9465")) is not None
    assert guard("node.example").refusal(request(host="Node.example:9465")) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://localhost:9465"},
        {"origin": "http://localhost:8080"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_pages_elsewhere_may_not_ask(headers: dict[str, str]) -> None:
    refusal = guard().refusal(request(host="localhost:9465", **headers))
    assert refusal is not None
    assert refusal.status == 403


def test_a_link_from_elsewhere_leads_to_the_page() -> None:
    followed = request("/", host="localhost:9465", sec_fetch_site="cross-site")
    assert guard().refusal(followed) is None


def test_two_origins_are_none() -> None:
    repeated = Request(
        method="GET",
        path="/",
        headers={"host": "localhost"},
        repeated=frozenset({"origin"}),
    )
    assert guard().refusal(repeated) is not None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("localhost", "localhost"),
        ("[2001:DB8::1]:80", "2001:db8::1"),
        ("a.example:65535", "a.example"),
        ("a.example:65536", None),
        ("a example", None),
        ("[evil]:1", None),
        ("a" * 254, None),
    ],
)
def test_host_names(text: str, name: str | None) -> None:
    assert host_name(text) == name


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.0.1", "::1", "localhost", "LocalHost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.1", "example.org", "")))


async def test_acting_needs_the_token_and_reading_does_not() -> None:
    async with served() as page:
        assert (await page.ask("/api/status")).status == 200
        for wrong in ("", "x", page.token[:-1], page.token + "x", "ä" * 43):
            assert (await page.act("pause", X_Distro_Token=wrong)).status == 403
        kind = {"Content-Type": "application/json"}
        assert (await page.ask("/api/act/pause", method="POST", headers=kind)).status == 403
        # As a form on another page would send it, without a preflight request.
        assert (await page.act("pause", Content_Type="text/plain")).status == 415
        link = {"X-Distro-Token": page.token}
        assert (await page.ask("/api/act/pause", headers=link)).status == 405
        assert page.done == []
        assert (await page.act("pause")).json == {"ok": True}
        assert (await page.act("hours", {"active": "22:00-07:00"})).status == 200
        assert (await page.act("hours", {"active": "wrong"})).json == {"error": "no"}
        assert page.done[:2] == [("pause", {}), ("hours", {"active": "22:00-07:00"})]
        assert (await page.act("scored")).status == 404
        assert (await page.act("pause", [1])).status == 400
        assert (await page.ask("/api/token", headers=link)).json == {"acts": True, "model": False}
        assert (await page.ask("/api/token")).json == {"acts": False, "model": False}


async def test_the_model_writes_for_the_owner_alone() -> None:
    asked = []

    async def model(request: Request) -> Response:
        asked.append(request.path)
        return text_response(200, "written")

    async with served() as page:
        assert (await page.ask("/v1/models")).status == 404
    async with served(model=model) as page:
        link = {"X-Distro-Token": page.token}
        assert (await page.ask("/v1/models")).status == 401
        assert (
            await page.ask("/v1/models", headers=link | {"Origin": "http://evil"})
        ).status == 403
        assert asked == []
        assert (await page.ask("/v1/models", headers=link)).body == b"written\n"
        assert (await page.ask("/api/token", headers=link)).json == {"acts": True, "model": True}
        assert (await page.ask("/api/token")).json == {"acts": False, "model": False}


async def test_acting_from_a_page_elsewhere_fails_with_the_token_too() -> None:
    async with served() as page:
        assert (await page.act("pause", Origin="http://evil.example")).status == 403
        assert (await page.act("pause", Host="evil.example")).status == 403
        assert page.done == []


async def test_the_token_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served() as page:
        await page.act("pause")
        await page.act("pause", X_Distro_Token="wrong")
        assert page.token not in caplog.text
        assert page.token not in repr(page.address)
        assert page.address.link.endswith(f"#token={page.token}")


async def test_each_start_has_a_token_of_its_own() -> None:
    async with served() as one, served() as two:
        assert one.token != two.token
        assert len(one.token) >= 43


async def test_what_guards_the_page_stands_in_every_answer() -> None:
    async with served() as page:
        for path in ("/", "/app.js", "/api/status", "/nothing", "/api/act/pause"):
            said = await page.ask(path)
            policy = said.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert said.headers["x-content-type-options"] == "nosniff"
            assert said.headers["referrer-policy"] == "no-referrer"
            assert "access-control-allow-origin" not in said.headers


@pytest.mark.parametrize(
    "path", ["/..%2fpages.py", "/../pages.py", "//etc/passwd", "/static/app.js"]
)
async def test_no_other_file_is_served(path: str) -> None:
    async with served() as page:
        assert (await page.ask(path)).status == 404


def test_another_address_needs_tls_or_an_option() -> None:
    with pytest.raises(UserError, match="others in the network could read") as refused:
        open_address(DashboardSettings(address=("0.0.0.0", 0)))
    assert refused.value.code == ExitCode.BAD_ADDRESS
    assert "--dashboard-cert" in refused.value.remedy


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_a_page_at_all_addresses_is_named_by_one_that_opens(host: str) -> None:
    settings = DashboardSettings(address=(host, 0), allow_plain=True)
    try:
        address = open_address(settings)
    except UserError:
        pytest.skip("this machine does not have this kind of address")
    assert address is not None
    try:
        parts = urllib.parse.urlsplit(address.url)
        assert parts.hostname is not None
        assert not ipaddress.ip_address(parts.hostname).is_unspecified
        socket.create_connection((parts.hostname, parts.port), PATIENCE_SECONDS).close()
    finally:
        address.close()
    assert openable_host("node.example") == "node.example"
    assert openable_host("192.0.2.7") == "192.0.2.7"


async def test_where_others_read_along_it_is_reported_and_reading_needs_the_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = DashboardSettings(address=("0.0.0.0", 0), allow_plain=True)
    async with served(settings=settings) as page:
        assert "without encryption" in caplog.text
        assert (await page.ask("/")).status == 200
        for path in ("/api/status", "/api/rounds", "/api/stream", "/api/contributions.csv"):
            assert (await page.ask(path)).status == 401
        token = {"X-Distro-Token": page.token}
        assert (await page.ask("/api/status", headers=token)).status == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def test_over_tls(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    settings = DashboardSettings(address=("0.0.0.0", 0), certificate=cert, key=key)
    async with served(settings=settings) as page:
        assert page.address.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        stream = await trio.open_ssl_over_tcp_stream(
            "localhost", page.port, ssl_context=context, https_compatible=True
        )
        with trio.fail_after(PATIENCE_SECONDS):
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 200")
        await trio.aclose_forcefully(stream)
        # A client that speaks plain HTTP there is disconnected, and no other notices.
        async with await page.connect() as plain:
            await plain.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with trio.fail_after(PATIENCE_SECONDS):
                try:
                    while await plain.receive_some(1000):
                        pass
                except trio.BrokenResourceError:
                    pass


def test_a_certificate_that_is_none(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    (tmp_path / "empty").touch()
    for one, other in (
        (tmp_path / "empty", key),
        (cert, tmp_path / "missing"),
        (cert, cert),
        (cert, None),
        (None, key),
    ):
        settings = DashboardSettings(address=("127.0.0.1", 0), certificate=one, key=other)
        with pytest.raises(UserError) as refused:
            open_address(settings)
        assert refused.value.code == ExitCode.BAD_ADDRESS


async def test_where_the_port_is_taken_another_one_is_and_it_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        address = open_address(DashboardSettings(address=("127.0.0.1", port)))
        assert address is not None
        try:
            assert f":{port}/" not in address.url
            assert f"port {port} is in use" in caplog.text
        finally:
            address.close()


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(UserError, match="cannot serve the page") as refused:
        open_address(DashboardSettings(address=("192.0.2.1", 0), allow_plain=True))
    assert refused.value.code == ExitCode.ADDRESS_MISSING
