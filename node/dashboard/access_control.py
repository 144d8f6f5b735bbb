"""Access control of what this machine serves (the dashboard page, the metrics, the model): who may
read, and who may act.

A browser runs pages of strangers and lets them send requests to this machine. Two attacks are prevented
here. *DNS rebinding*: a stranger's name that suddenly resolves to 127.0.0.1 makes the stranger's page
same-origin with ours; but the request carries that name in `Host`, and only requests for our own names
are answered. *Request forgery*: the browser marks a request from another page in `Origin` or
`Sec-Fetch-Site`. Actions also need the token, which only the owner of the data directory can obtain.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace

from ..util.host_names import host_name, is_own_host
from .http import Answer, Request, Response, text_response

# With these headers scripts and styles come from this server alone; the page contacts no other server,
# cannot be framed, and sends no referrer.
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "
    "'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}

TOKEN_HEADER = "x-distro-token"
_BEARER = "bearer "
# Paths that only scripts and programs request, and no link leads to.
_SCRIPTED = ("/api/", "/v1/")


@dataclass(frozen=True, kw_only=True)
class AccessGuard:
    """Access rules of one served address."""

    host: str
    """The address or name at which the page is served, as the owner gave it."""
    token: str
    """A request with this token may act, and may read even without `free_reading`."""
    secure: bool
    """Whether the page is served over TLS."""
    free_reading: bool
    """Whether reading needs no token."""

    def __repr__(self) -> str:
        # A repr ends up in logs; the token must not.
        return f"AccessGuard(host={self.host!r})"

    def refusal(self, request: Request) -> Response | None:
        """Return the refusal of a request from a foreign host or page; None if it may be answered."""
        host = request.headers.get("host", "")
        name = host_name(host)
        if name is None or not is_own_host(name, self.host):
            return text_response(403, "the page is served only under its own address")
        scheme = "https" if self.secure else "http"
        if "origin" in request.repeated:
            return text_response(403, "a request has one Origin header")
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() != f"{scheme}://{host.lower()}":
            return text_response(403, "another page may not ask this one")
        # Only paths for scripts are refused: the browser also marks the request as cross-site if a user
        # follows a link to this page, but not if this page's script sends it.
        fetched = request.headers.get("sec-fetch-site", "none")
        if request.path.startswith(_SCRIPTED) and fetched not in ("same-origin", "none"):
            return text_response(403, "another page may not ask this one")
        return None

    def may_read(self, request: Request) -> bool:
        """Whether a request that passed `refusal` may read the node's state."""
        return self.free_reading or self.may_act(request)

    def may_act(self, request: Request) -> bool:
        """Whether a request that passed `refusal` has the token."""
        given = request.headers.get(TOKEN_HEADER, "")
        # Programs for OpenAI's interface send the token this way.
        authorization = request.headers.get("authorization", "")
        if not given and authorization[: len(_BEARER)].lower() == _BEARER:
            given = authorization[len(_BEARER) :].strip()
        return hmac.compare_digest(given.encode("latin-1"), self.token.encode())


async def answer_guarded(guard: AccessGuard, request: Request, answer: Answer) -> Response:
    """Return the response of `answer` to a request that `guard` lets through, or the refusal; both with
    the security headers."""
    response = guard.refusal(request) or await answer(request)
    return replace(response, headers={**_SECURITY_HEADERS, **response.headers})
