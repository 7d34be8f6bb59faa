"""A rank loads its own bytes: what it reads, by the kernel's count too, and what it says of that."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from small_model import LLAMA_CONFIG, TINY, llama_tensors, write_folder

from trivet.base.errors import CheckpointError
from trivet.cli.load import load
from trivet.framework.model.convert import convert
from trivet.framework.model.loading.ranks import read_rank
from trivet.framework.model.loading.read import ReadOptions
from trivet.framework.model.loading.times import LoadTimes
from trivet.framework.model.manifest import ALIGNMENT, Manifest, read_manifest
from trivet.framework.model.package import open_package
from trivet.framework.model.steps import Wanted


def read_bytes_of_this_process() -> int:
    """All that its reads returned, from storage or not."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough beside what else a process reads."""
    folder = tmp_path_factory.mktemp("cut")
    config = {**LLAMA_CONFIG, "hidden_size": 256, "intermediate_size": 16384, "num_key_value_heads": 4}
    write_folder(folder / "model", llama_tensors(config), config)
    return convert(folder / "model", folder / "package", Wanted(num_ranks=4)).package.path


def own_bytes(manifest: Manifest, rank: int) -> int:
    return sum(piece.bytes for piece in manifest.of_rank(rank).values())


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_reads_as_many_bytes_as_it_has(cut: Path, rank: int) -> None:
    manifest = read_manifest(cut)
    before = read_bytes_of_this_process()
    read = read_rank(cut, manifest, rank, ReadOptions(2, "buffered"), LoadTimes())
    counted = read_bytes_of_this_process() - before
    own, room = own_bytes(manifest, rank), ALIGNMENT * len(manifest.tensors)  # between two weights

    assert own <= read.report.num_bytes <= own + room
    assert own <= counted <= own + (2 << 20)  # the mounts and mappings of the process are read too; another's is 6 MiB
    assert {piece.shard for piece in manifest.of_rank(rank).values()} == {e.file.name for e in read.report.extents}


def test_what_ranks_read_is_what_their_packages_map(cut: Path) -> None:
    for rank in range(4):
        read = read_rank(cut, read_manifest(cut), rank, ReadOptions(2), LoadTimes())
        for name, mapped in open_package(cut, rank=rank).weights.items():
            assert mapped.tobytes() == read.arrays[name].tobytes()


def test_a_rank_that_is_not_there_is_refused(cut: Path) -> None:
    with pytest.raises(CheckpointError, match="package is for ranks 0 to 3, rank 4 was asked for"):
        read_rank(cut, read_manifest(cut), 4, ReadOptions(2), LoadTimes())


def test_the_report_says_whose_it_is_and_how_much_of_all(cut: Path) -> None:
    told = CliRunner().invoke(load, [str(cut), "--rank", "2"], catch_exceptions=False).output

    assert "rank 2 of 4: read " in told
    assert " of a package of " in told


def test_explain_names_the_files_of_the_rank_alone(cut: Path) -> None:
    manifest = read_manifest(cut)
    told = CliRunner().invoke(load, [str(cut), "--rank", "2", "--explain"], catch_exceptions=False).output

    assert {piece.shard for piece in manifest.of_rank(2).values()} == {
        shard for shard in manifest.shards if f"{cut / shard} on " in told
    }


def test_a_rank_needs_no_other_ranks_files(cut: Path, tmp_path: Path) -> None:
    manifest = read_manifest(cut)
    for file in {"trivet.json", *(piece.shard for piece in manifest.of_rank(3).values())}:
        (tmp_path / file).hardlink_to(cut / file)
    told = CliRunner().invoke(load, [str(tmp_path), "--rank", "3"], catch_exceptions=False).output

    assert "rank 3 of 4: read " in told


def test_a_checkpoint_is_cut_for_the_ranks_first_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIVET_CACHE", str(tmp_path))
    command = [str(TINY / "llama"), "--rank", "1", "--tensor-parallel", "2"]
    first = CliRunner().invoke(load, command, catch_exceptions=False).output
    second = CliRunner().invoke(load, command, catch_exceptions=False).output

    assert "rank 1 of 2" in first
    assert "transform" in first
    assert "transform" not in second


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", "0", "--staged"], "ways of their own"),
        (["--tensor-parallel", "2"], "name it with --rank"),
        (["--broadcast", "localhost:1"], "name it with --rank"),
        (["--rank", "0", "--ranks", "2"], "how many meet at --broadcast"),
        (["--rank", "0", "--broadcast", "29500"], "wanted HOST:PORT"),
    ],
)
def test_options_that_do_not_go_together_are_refused(cut: Path, options: list[str], message: str) -> None:
    done = CliRunner().invoke(load, [str(cut), *options])

    assert 2 == done.exit_code
    assert message in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", "0", "--tensor-parallel", "2"], "is a package for 4 ranks, --tensor-parallel 2 was asked for"),
        (["--rank", "0", "--broadcast", "localhost:1", "--ranks", "2"], "is cut for 4 ranks, 2 load together"),
    ],
)
def test_a_package_that_is_cut_otherwise_is_refused(cut: Path, options: list[str], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        CliRunner().invoke(load, [str(cut), *options], catch_exceptions=False)
