"""What `--model-loader-extra-config` may say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from trivet.base.errors import ConfigError
from trivet.framework.model.loading.engines import ENGINES, EngineName


@dataclass(frozen=True)
class LoaderOptions:
    """As the options of `trivet load`."""

    verify: bool = True  # compare with the checksums, where there are any
    engine: EngineName | None = None  # None: what fits each file
    threads: int | None = None  # that read from memory and hash; None: one for each CPU that this process may use


_OPTION = "--model-loader-extra-config"
_WANTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "verify": (lambda value: isinstance(value, bool), "true or false"),
    "engine": (lambda value: value in ENGINES, f"one of {', '.join(ENGINES)}"),
    "threads": (lambda value: isinstance(value, int) and value is not True and value > 0, "a number above 0"),
}


def parse_options(given: object) -> LoaderOptions:
    """Raises ConfigError for what is no object, for an unknown key and for a value of another kind."""
    if not isinstance(given, dict):
        raise ConfigError(f"{_OPTION}: {given!r:.80} was given, a JSON object was wanted")
    known = [field.name for field in fields(LoaderOptions)]
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"{_OPTION}: {key} is not known to --load-format trivet", f"it knows {', '.join(known)}")
        fits, wanted = _WANTED[key]
        if not fits(value):
            raise ConfigError(f"{_OPTION}: {key} is {value!r:.80}, {wanted} was wanted")
    return LoaderOptions(**given)
