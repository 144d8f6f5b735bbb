"""A local web server whose answers a test sets, and a certificate for it."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

Write = Callable[[bytes], object]
Answer = tuple[int, dict[str, str], Callable[[Write], object]]
"""Status, headers, and a function that writes the body."""


class WebServer(ThreadingHTTPServer):
    """The requests it received, and its URL."""

    def __init__(
        self, answer: Callable[[str], Answer], certificate: tuple[Path, Path] | None = None
    ) -> None:
        """`answer` is called with the path of a request. With a certificate and its key it speaks TLS,
        as `localhost`."""
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                status, headers, write = answer(self.path)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    write(self.wfile.write)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self.url = f"https://localhost:{self.server_port}"

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve requests for the duration of the context."""
        with self:
            thread = Thread(target=self.serve_forever)
            thread.start()
            try:
                yield
            finally:
                self.shutdown()
                thread.join()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Return the files of a self-signed certificate for `localhost` and of its key. Skips the test where
    there is no openssl."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("openssl makes no certificate here")
    return cert, key
