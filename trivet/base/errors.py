"""Every error a person can cause. A broken invariant is an AssertionError, never one of these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrivetError(Exception):
    """Bad input: what is, what was wanted, what to do.

    `message` begins with the name of the thing the user named (a file, a tensor, an option) and says what is
    and what was wanted; `hint` is the next thing to do, as a command where there is one.
    """

    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  → {self.hint}"


class CheckpointError(TrivetError):
    """A checkpoint or package cannot be read: missing, truncated, lying, of a kind we refuse."""


class BundleError(TrivetError):
    """A bundle of a host cannot be written or read: damaged, hostile, or not one of ours."""


class ConfigError(TrivetError):
    """A model's configuration is missing a key, or asks for what no family here computes."""


class GraphError(TrivetError):
    """A graph breaks a law, or no implementation on the device takes one of its nodes."""


class RequestError(TrivetError):
    """A request that cannot be served as asked; `parameter` names the field at fault."""

    parameter: str | None = None

    def __init__(self, message: str, hint: str | None = None, parameter: str | None = None) -> None:
        super().__init__(message, hint)
        self.parameter = parameter


class ResourceError(TrivetError):
    """The host has too little of something: memory, disk, a port. Says need, have, and which knob."""


class UnavailableError(TrivetError):
    """The service is draining, full or stopped; the same request may succeed later or elsewhere."""


class OverloadedError(UnavailableError):
    """More was asked for than can be served in time; `retry_after_s` is when the same request may be taken."""

    def __init__(self, message: str, hint: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s
