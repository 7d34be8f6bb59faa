import fcntl
import os
from pathlib import Path

import numpy as np
import pytest
from small_model import weights_graph, write_folder, write_package

from trivet.base.errors import CheckpointError
from trivet.framework.model.cache import made_before, packaged
from trivet.framework.model.checkpoints.digest import model_name
from trivet.framework.model.checkpoints.readers import open_checkpoint

MATRIX = np.ones((4, 4), np.float32)


class Builds:
    """Converts, and counts how often it was asked to."""

    def __init__(self):
        self.count = 0

    def __call__(self, source, destination):
        self.count += 1
        destination.parent.mkdir(parents=True, exist_ok=True)
        return write_package(open_checkpoint(source), weights_graph({"a": (4, 4)}), destination)


def test_a_checkpoint_is_converted_once_and_found_again(tmp_path):
    folder, build = write_folder(tmp_path / "My Model", {"a": MATRIX}), Builds()
    first = packaged(folder, tmp_path / "cache", "bfloat16-level0", build)
    second = packaged(str(folder), tmp_path / "cache", "bfloat16-level0", build)

    assert 1 == build.count
    assert first.path == second.path
    assert first.path.parent == tmp_path / "cache" / "packages"
    assert f"My-Model-{first.source_digest[:16]}-bfloat16-level0" == first.path.name.rsplit("-", 1)[0]


def test_a_model_has_the_name_of_its_path_and_not_of_what_that_links_to(tmp_path, monkeypatch):
    blob = tmp_path / "blobs" / "6f1c"
    blob.mkdir(parents=True)
    link = tmp_path / "My Model.gguf"
    link.symlink_to(blob)
    monkeypatch.chdir(link)

    assert "My Model" == model_name(link)
    assert "My Model" == model_name(link / ".." / "My Model.gguf")
    assert "6f1c" == model_name(blob)
    assert "6f1c" == model_name(Path())  # a process does not know by which link it came
    assert "blobs" == model_name(Path(".."))


def test_a_changed_checkpoint_or_variant_is_another_package(tmp_path):
    folder, build = write_folder(tmp_path / "model", {"a": MATRIX}), Builds()
    packages = [packaged(folder, tmp_path, "bfloat16-level0", build), packaged(folder, tmp_path, "other", build)]
    write_folder(folder, {"a": MATRIX * 2})
    packages.append(packaged(folder, tmp_path, "bfloat16-level0", build))

    assert 3 == build.count
    assert 3 == len({package.path for package in packages})


def test_a_package_made_before_is_found_until_the_checkpoint_changes(tmp_path):
    folder, build = write_folder(tmp_path / "model", {"a": MATRIX}), Builds()

    assert made_before(folder, tmp_path) is None
    package = packaged(folder, tmp_path, "bfloat16-level0", build)
    assert package.path == made_before(folder, tmp_path)
    write_folder(folder, {"a": MATRIX * 2})
    assert made_before(folder, tmp_path) is None


def test_a_package_is_opened_where_it_is(tmp_path):
    folder, build = write_folder(tmp_path / "model", {"a": MATRIX}), Builds()
    path = packaged(folder, tmp_path / "cache", "bfloat16-level0", build).path

    assert path == packaged(path, tmp_path / "unused", "float32-level3", build).path
    assert 1 == build.count
    assert not (tmp_path / "unused").exists()


def test_what_is_not_there_is_said_before_anything_is_made(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        packaged(tmp_path / "model", tmp_path / "cache", "bfloat16-level0", Builds())

    assert [] == list(tmp_path.iterdir())


def test_what_a_killed_conversion_left_goes_when_that_of_another_begins_and_what_is_held_stays(tmp_path):
    packages = tmp_path / "packages"
    left, held = packages / "old.partial", packages / "busy.partial"
    for folder in (left, held):
        folder.mkdir(parents=True)
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    packaged(write_folder(tmp_path / "model", {"a": MATRIX}), tmp_path, "bfloat16-level0", Builds())
    os.close(descriptor)

    assert (False, True) == (left.exists(), held.exists())
