"""Who may read the page, and who may act through it.

A browser runs pages of strangers, and lets them send requests to this machine. Two ways lead from there
to an answer, and both end here. *Rebinding*: a stranger's name that suddenly means 127.0.0.1 makes its
page ours in the browser's eyes; but the request says that name in `Host`, and no name but ours is
answered. *Forgery*: a request from a page elsewhere says so in `Origin` or `Sec-Fetch-Site`. Acting
needs the token besides, which only the owner of the data directory can ask for.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from ..host_names import host_name, is_own_host
from .http import Request, Response, text_response

TOKEN_HEADER = "x-distro-token"


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What is let in at an address that is served."""

    host: str
    """As the owner named it: an address, or a name."""
    token: str
    """Whoever has it may act; and read, where reading is not free."""
    secure: bool
    """Whether it is served over TLS."""
    free_reading: bool
    """Whether reading needs no token."""

    def __repr__(self) -> str:
        # A repr ends up in logs; the token must not.
        return f"Guard(host={self.host!r})"

    def refusal(self, request: Request) -> Response | None:
        """Why a request is not answered, whatever it is about; None if it is."""
        host = request.headers.get("host", "")
        name = host_name(host)
        if name is None or not is_own_host(name, self.host):
            return text_response(403, "this page answers to its own address alone")
        scheme = "https" if self.secure else "http"
        if "origin" in request.doubled:
            return text_response(403, "a request comes from one page")
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() != f"{scheme}://{host.lower()}":
            return text_response(403, "another page may not ask this one")
        # Of a link that leads here the browser says that it comes from elsewhere; not so of our script.
        fetched = request.headers.get("sec-fetch-site", "none")
        if request.path.startswith("/api/") and fetched not in ("same-origin", "none"):
            return text_response(403, "another page may not ask this one")
        return None

    def may_read(self, request: Request) -> bool:
        """Whether a request that was not refused may see what the node does."""
        return self.free_reading or self.may_act(request)

    def may_act(self, request: Request) -> bool:
        """Whether a request that was not refused has the token."""
        given = request.headers.get(TOKEN_HEADER, "")
        return hmac.compare_digest(given.encode("latin-1"), self.token.encode())
