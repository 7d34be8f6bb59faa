"""On what terms a request is served: they decide when it runs, never what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from sys import float_info

from trivet.base.errors import RequestError

MAX_TENANT_CHARS = 256
MAX_PRIORITY = 1000


@dataclass(frozen=True)
class Terms:
    """Whose request it is, which of theirs goes first, and until when it is worth an answer."""

    tenant: str = ""  # tenants share the service by tokens; "" is one like any other
    priority: int = 0  # the lower is served first, among the requests of one tenant
    timeout_s: float | None = None  # since arrival; then it ends with "timeout"

    def validated(self) -> Terms:
        """These terms, or a RequestError that names the first one at fault."""
        if len(self.tenant) > MAX_TENANT_CHARS:
            raise RequestError(f"user has {len(self.tenant)} characters, wanted at most {MAX_TENANT_CHARS}",
                               parameter="user")  # fmt: skip
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise RequestError(f"priority is {self.priority}, wanted an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}",
                               parameter="priority")  # fmt: skip
        if self.timeout_s is not None and not 0 < self.timeout_s <= float_info.max:
            raise RequestError(f"timeout_s is {self.timeout_s}, wanted seconds above 0", parameter="timeout_s")
        return self


DEFAULT_TERMS = Terms()
