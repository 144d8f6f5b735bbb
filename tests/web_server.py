"""A local web server whose answers a test sets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Write = Callable[[bytes], object]
Answer = tuple[int, dict[str, str], Callable[[Write], object]]
"""Status, headers, and a function that writes the body."""


class WebServer(ThreadingHTTPServer):
    """The requests it received, and its URL."""

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        """`answer` is called with the path of a request."""
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
