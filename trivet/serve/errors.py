"""What a failed request is told: a status, and OpenAI's error object. Nothing of the server's insides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from trivet.base.errors import OverloadedError, RequestError, TrivetError, UnavailableError


class HttpError(TrivetError):
    """A refusal that has a status of its own, such as 401, 404 or 413."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str | None = None,
        parameter: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code
        self.parameter = parameter
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class Refusal:
    """An error as HTTP has it. `code` is what a program switches on, `message` is for the person."""

    status: int
    code: str
    message: str
    parameter: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """The OpenAI error object, as JSON."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.parameter, "code": self.code}
        return msgspec.json.encode({"error": error})


def refusal(error: Exception) -> Refusal:
    """What `error` means to the client; one that is nobody's fault but ours says only that."""
    if isinstance(error, HttpError):
        return Refusal(error.status, error.code, _sentence(error), error.parameter, error.headers)
    if isinstance(error, RequestError):
        return Refusal(400, "invalid_parameter" if error.parameter else "invalid_request", _sentence(error),
                       error.parameter)  # fmt: skip
    if isinstance(error, OverloadedError):
        return Refusal(429, "overloaded", _sentence(error), headers={"retry-after": str(error.retry_after_s)})
    if isinstance(error, UnavailableError):
        return Refusal(503, "unavailable", _sentence(error), headers={"retry-after": "1"})
    return Refusal(500, "internal_error", "the server failed on this request; its log has the reason under this id")


def _sentence(error: TrivetError) -> str:
    return error.message if error.hint is None else f"{error.message}; {error.hint}"
