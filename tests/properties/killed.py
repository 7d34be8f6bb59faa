"""Converts again and again, killed between two lines of our code; run by test_conversion.py in a process of its own."""

import random
import shutil
import sys
from pathlib import Path

from tests.properties.mortal import lines_run
from trivet.base.errors import CheckpointError
from trivet.framework.model import convert as conversion
from trivet.framework.model.package import open_package
from trivet.framework.model.steps import Wanted
from trivet.framework.model.work_folder import work_path

# Whose lines are counted: all that converts, and as often the few that put the package in its place.
OURS = str(Path(conversion.__file__).parent)
PLACES = (OURS, f"{OURS}/work_folder.py")
WANTED = Wanted(shard_bytes=100_000)


def run(source: Path, destination: Path, place: str, last_line: int | None) -> int:
    """Convert in a child that kills itself after so many lines of `place`; the lines it ran, 0 if it was killed."""
    return lines_run(
        lambda: conversion.convert(source, destination, WANTED), lambda file: file.startswith(place), last_line
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_half_made(destination: Path, wanted: dict[str, bytes]) -> None:
    """Whatever opens, in place or in the work folder, is whole."""
    for folder in (destination, work_path(destination) / "package"):
        try:
            open_package(folder)
        except CheckpointError:
            continue
        assert wanted == contents(folder)


def main(source: Path, folder: Path, num_kills: int, seed: int) -> None:
    random.seed(seed)
    num_lines = {place: run(source, folder / place.replace("/", "-"), place, None) for place in PLACES}
    wanted = contents(folder / PLACES[0].replace("/", "-"))
    num_done = 0
    while num_done < num_kills:
        destination = folder / f"package{num_done}"
        points = []
        # A conversion that continues is killed again.
        for _ in range(random.choice([1, 1, 2, 3])):
            place = random.choice(PLACES)
            points.append((place, random.randint(1, num_lines[place])))
            num_done += 1
            run(source, destination, *points[-1])
            check_half_made(destination, wanted)
        run(source, destination, PLACES[0], None)
        assert wanted == contents(destination), points
        assert not work_path(destination).exists(), points
        shutil.rmtree(destination)
    print(f"{num_done} kills among {sum(num_lines.values())} lines")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
