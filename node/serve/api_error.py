"""Errors in the form in which OpenAI's interface reports them."""

from __future__ import annotations

from typing import Any

_INVALID = "invalid_request_error"
_KINDS = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}


class ApiError(Exception):
    """An error that a client is told: the HTTP status, one line, and which parameter is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        """`retry_after`: the seconds after which the client may try again."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the response."""
        return {
            "error": {
                "message": self.message,
                "type": _KINDS.get(self.status, _INVALID),
                "param": self.param,
                "code": self.code,
            }
        }


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    """Return the error for a parameter with an invalid value."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)
