from pathlib import Path

import pytest

from trivet.base.settings import read_settings

HOME = Path("~/.cache/trivet").expanduser()


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"TRIVET_CACHE": "/ours", "XDG_CACHE_HOME": "/caches"}, Path("/ours")),
        ({"XDG_CACHE_HOME": "/caches"}, Path("/caches/trivet")),
        ({"XDG_CACHE_HOME": "not/absolute"}, HOME),
        ({}, HOME),
    ],
)
def test_packages_are_kept_where_the_user_or_the_system_says(environ: dict[str, str], folder: Path) -> None:
    assert folder == read_settings(environ).cache_dir
