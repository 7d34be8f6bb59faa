"""What is said of a load follows from its figures alone; a limit is kept for the storage it was measured on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from trivet.base.errors import ResourceError
from trivet.base.units import MIB
from trivet.cli import cli
from trivet.framework.model.loading.read import ExtentReport, ReadReport, joined
from trivet.framework.model.loading.report import LoadReport, RankShare, bottleneck, text, to_json
from trivet.framework.model.loading.storage_limit import StorageLimit, recall, remember
from trivet.framework.model.loading.times import LoadTimes
from trivet.serve.bench import storage
from trivet.serve.bench.fio import read_by_fio
from trivet.serve.bench.storage import StorageSpeed, limit_of, measure_storage, table

GB = 10**9
EXTENT = ExtentReport(
    Path("m/model.safetensors"), 4 * GB, "ext4", 0.0, "io_uring", "it is not in the page cache", 0, 2, 0
)
READ = ReadReport(4 * GB, seconds=2.0, cpu_s=0.6, hash_s=0.4, verified=4 * GB, extents=(EXTENT,), arena_bytes=4 * GB)
LIMIT = StorageLimit(2.1 * GB, "io_uring", "2026-01-01T00:00:00+00:00")
REPORT = LoadReport(
    "m", {"open": 0.1, "read": 2.0, "bind": 0.1}, READ, cpu_s=1.0, peak_rss_bytes=5 * GB, numa_node=None, num_cpus=4,
    storage=LIMIT,
)  # fmt: skip
RECEIVED = replace(READ, num_bytes=0, extents=(), received_bytes=4 * GB)
WARM = replace(READ, extents=(replace(EXTENT, resident=1.0, engine="buffered"),))


@pytest.mark.parametrize(
    ("report", "what", "helps"),
    [
        (REPORT, "the storage: 95% of its best", "faster storage"),
        (replace(REPORT, storage=None), "the storage", "trivet bench storage"),
        (replace(REPORT, storage=replace(LIMIT, bytes_per_s=8 * GB)), "the storage at 25%", "measure it again"),
        (replace(REPORT, storage=None, read=replace(READ, hash_s=7.0)), "comparing checksums", "--no-verify"),
        (replace(REPORT, read=WARM), "memory: the files were in the page cache", "nothing"),
        (replace(REPORT, read=replace(WARM, cpu_s=7.9)), "copying and hashing by the CPUs", "--threads"),
        (replace(REPORT, phases={"transform": 9.0, "read": 1.0}), "converting the checkpoint", "trivet convert"),
        (replace(REPORT, phases={"read": 1.0, "copy": 9.0}), "copies to the device", "NUMA node"),
        (replace(REPORT, phases={"meet": 9.0, "read": 1.0}), "waiting for the other ranks", "at once"),
        (replace(REPORT, phases={"read": 1.0, "broadcast": 9.0}), "reading for all ranks and sending", "for itself"),
        (replace(REPORT, phases={"broadcast": 9.0}, read=RECEIVED), "what rank 0 sent", "its own report"),
        (replace(REPORT, phases={"read": 1.0, "warm-up": 9.0}), "warm-up, not reading", "nothing about storage"),
    ],
)  # fmt: skip
def test_what_held_a_load_up_and_what_would_help(report: LoadReport, what: str, helps: str) -> None:
    found, help_of = bottleneck(report)

    assert found.startswith(what)
    assert helps in help_of


def test_the_text_says_what_a_person_wants_to_know() -> None:
    assert (
        text(replace(REPORT, read=replace(READ, huge_bytes=1 * GB), numa_node=1))
        == """\
m: 3.7 GiB in 2.20 s

  open  100.0 ms
  read    2.00 s
  bind  100.0 ms

read at 2.00 GB/s, 95% of the 2.10 GB/s the storage can do; 3.7 GiB by io_uring (it is not in the page cache)
3.7 GiB compared with their checksums: 400.0 ms of hashing
1.00 CPU-seconds, 0.60 of them reading; peak memory 4.7 GiB
weights in one arena of 3.7 GiB, 25% on huge pages (the kernel granted no more: see trivet doctor), from NUMA node 1
bottleneck: the storage: 95% of its best
  → faster storage, or enough memory to keep the files cached"""
    )


def test_a_rank_that_received_says_how_much_it_read_of_what_and_from_whom_the_rest_came() -> None:
    report = replace(REPORT, share=RankShare(1, 3, 9 * GB), read=replace(READ, num_bytes=1 * GB, received_bytes=2 * GB))
    only_received = replace(report, read=replace(RECEIVED, received_bytes=2 * GB))

    assert "m: 2.8 GiB in 2.20 s" in text(report)
    assert "rank 1 of 3: read 953.7 MiB of a package of 8.4 GiB\n1.9 GiB came from rank 0\n" in text(report)
    assert "read at" not in text(only_received)


def test_reads_one_after_the_other_are_one_read_in_the_report() -> None:
    first, second = replace(READ, huge_bytes=5, copy_s=0.5), replace(READ, huge_bytes=7, received_bytes=3)
    both = joined([first, second])

    assert (8 * GB, 4.0, 8 * GB, 3) == (both.num_bytes, both.seconds, both.verified, both.received_bytes)
    assert [(0, 2), (2, 4)] == [(each.begin_s, each.end_s) for each in both.extents]
    assert (12, None) == (both.huge_bytes, both.copy_s)  # whether the second waited for copies is unknown
    assert first == joined([first])


def test_a_phase_inside_another_is_counted_once_and_one_that_comes_again_goes_on() -> None:
    times = LoadTimes({"read": 2.0})
    with times.phase("bind"), times.phase("read"):
        pass
    times.part("read", "copy", 1.5)

    assert ["read", "bind", "copy"] == list(times.phases)
    assert 0.5 <= times.phases["read"] < 2.0
    assert 0 <= times.phases["bind"]
    assert 1.5 == times.phases["copy"]


def test_the_json_is_json_and_agrees_with_the_text() -> None:
    document = json.loads(json.dumps(to_json(REPORT)))

    assert "the storage: 95% of its best" == document["bottleneck"]["what"]
    assert 2 * GB == document["read"]["bytes_per_s"]
    assert 0.0 == document["read"]["resident"]


def test_a_limit_is_found_again_for_files_on_the_same_storage(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    before = recall(tmp_path / "model", tmp_path / "cache")
    remember(LIMIT, tmp_path, tmp_path / "cache")

    assert before is None
    assert LIMIT == recall(tmp_path / "model", tmp_path / "cache")
    assert recall(Path("/proc"), tmp_path / "cache") is None


@pytest.mark.parametrize("damage", ["", "[1]", "{", '{"0:0": 1}'])
def test_a_damaged_record_is_as_if_nothing_had_been_measured(tmp_path: Path, damage: str) -> None:
    (tmp_path / "storage.json").write_text(damage)
    unknown = recall(tmp_path, tmp_path)
    remember(LIMIT, tmp_path, tmp_path)

    assert unknown is None
    assert LIMIT == recall(tmp_path, tmp_path)


def test_the_best_engine_is_the_limit_whatever_fio_says() -> None:
    speeds = [StorageSpeed("io_uring", (3.0, 1.0, 2.0)), StorageSpeed("direct", (1.5,)), StorageSpeed("fio", (9.0,))]

    assert (2.0, "io_uring") == (limit_of(speeds).bytes_per_s, limit_of(speeds).engine)
    assert "not tried: it is not installed" in table([StorageSpeed("fio", (), refusal="it is not installed")])


def test_storage_is_measured_in_every_way_there_is_and_the_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.shutil, "which", lambda name: None)
    try:
        speeds = measure_storage(tmp_path, 3 * MIB + 5, threads=2, repeats=2, tell=lambda line: None)
    except ResourceError as refused:
        pytest.skip(str(refused))  # there is no storage here

    assert ["io_uring", "direct", "buffered", "fio"] == [each.way for each in speeds]
    assert all(each.refusal or len(each.bytes_per_s) == 2 for each in speeds)
    assert [] == list(tmp_path.iterdir())


def test_bench_storage_is_a_command_and_refuses_what_is_no_folder(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["bench", "storage", str(tmp_path / "absent")])

    assert isinstance(result.exception, ResourceError)
    assert "absent is not a folder" in str(result.exception)


def test_fio_that_fails_is_told_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "fio"
    fake.write_text("#!/bin/sh\necho no such engine >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ResourceError, match="fio failed: no such engine"):
        read_by_fio([tmp_path / "file"], use_huge_pages=False)
