import os
import subprocess
import sys

import numpy as np
import pytest
from small_model import weights_graph, write_folder

from trivet.base.errors import ResourceError
from trivet.framework.model.cache import packaged
from trivet.framework.model.convert import convert
from trivet.framework.model.partial_folder import partial_folder, remove_stale

MATRIX = np.ones((4, 4), np.float32)


class Builds:
    """Converts, and counts how often it was asked to."""

    def __init__(self):
        self.count = 0

    def __call__(self, checkpoint, destination):
        self.count += 1
        return convert(checkpoint, weights_graph({"a": (4, 4)}), destination, dtype="bfloat16", level=0)


def test_a_checkpoint_is_converted_once_and_found_again(tmp_path):
    folder, build = write_folder(tmp_path / "My Model", {"a": MATRIX}), Builds()
    first = packaged(folder, tmp_path / "cache", "bfloat16-level0", build)
    second = packaged(str(folder), tmp_path / "cache", "bfloat16-level0", build)

    assert 1 == build.count
    assert first.path == second.path
    assert first.path.parent == tmp_path / "cache" / "packages"
    assert f"My-Model-{first.source_digest[:16]}-bfloat16-level0" == first.path.name.rsplit("-", 1)[0]


def test_a_changed_checkpoint_or_variant_is_another_package(tmp_path):
    folder, build = write_folder(tmp_path / "model", {"a": MATRIX}), Builds()
    packages = [packaged(folder, tmp_path, "bfloat16-level0", build), packaged(folder, tmp_path, "other", build)]
    write_folder(folder, {"a": MATRIX * 2})
    packages.append(packaged(folder, tmp_path, "bfloat16-level0", build))

    assert 3 == build.count
    assert 3 == len({package.path for package in packages})


def test_a_package_is_opened_where_it_is(tmp_path):
    folder, build = write_folder(tmp_path / "model", {"a": MATRIX}), Builds()
    path = packaged(folder, tmp_path / "cache", "bfloat16-level0", build).path

    assert path == packaged(path, tmp_path / "unused", "float32-level3", build).path
    assert 1 == build.count
    assert not (tmp_path / "unused").exists()


def test_what_a_killed_conversion_left_goes_when_the_next_begins(tmp_path):
    script = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from trivet.framework.model.partial_folder import partial_folder\n"
        "with partial_folder(Path(sys.argv[1])):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "old")], env=environment, check=False)
    left = [name.rsplit("-", 1)[0] for name in map(str, tmp_path.iterdir())]
    with partial_folder(tmp_path / "new"):
        pass

    assert -9 == killed.returncode
    assert [str(tmp_path / "old.partial")] == left
    assert [tmp_path / "new"] == list(tmp_path.iterdir())


def test_what_is_being_written_stays_and_cannot_be_written_twice(tmp_path):
    with partial_folder(tmp_path / "package") as folder:
        remove_stale(tmp_path)
        with (
            pytest.raises(ResourceError, match="is being written"),
            partial_folder(tmp_path / "package"),
        ):
            pass
        (folder / "file").write_text("whole")

    assert [tmp_path / "package"] == list(tmp_path.iterdir())
    assert "whole" == (tmp_path / "package" / "file").read_text()


def test_a_folder_appears_only_when_it_is_whole(tmp_path):
    with partial_folder(tmp_path / "package"):
        during = (tmp_path / "package").exists()

    assert (False, True) == (during, (tmp_path / "package").exists())
