"""A bundle gives the facts that its host gave, and no bundle, however made, does harm."""

import io
import json
import re
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import zstandard
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts import RECORDED, names, plant
from trivet.base.errors import BundleError
from trivet.cli.doctor import doctor
from trivet.driver import bundle
from trivet.driver.bundle import opened_bundle, write_bundle
from trivet.driver.facts import HostFacts
from trivet.driver.need import Need
from trivet.driver.readers.host import read_facts

HOSTS = Path(__file__).parents[1] / "fixtures" / "hosts"
NPU_SMI = HOSTS.parent / "outputs" / "014-910B2-25.2.0.txt"
NEED = Need("cpu", 5, "/data/trivet", 7)
MANIFEST = msgspec.json.encode({"format": 1, "need": {}})


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(doctor, [str(each) for each in arguments], env={"TRIVET_CACHE": "/data/trivet"})


def facts_of(path: Path, paths: tuple[str, ...] = ()) -> HostFacts:
    with opened_bundle(path) as (root, _):
        return read_facts(root, paths)


def without_addresses(facts: HostFacts) -> bytes:
    return re.sub(rb"(?<!\d)\d{1,3}(?:\.\d{1,3}){3}(?!\d)", b"address", msgspec.json.encode(facts))


@pytest.mark.parametrize("name", [*RECORDED, *names()])
def test_a_bundle_gives_the_facts_that_its_host_gave(tmp_path, name):
    root = plant(name, tmp_path / "host") if name not in RECORDED else HOSTS / name
    write_bundle(tmp_path / "out.tar.zst", root, NEED, ("/data/trivet",))
    there, here = read_facts(root, ("/data/trivet",)), facts_of(tmp_path / "out.tar.zst", ("/data/trivet",))

    assert without_addresses(there) == without_addresses(here)


def unknown(value: object, name: str = "facts") -> set[str]:
    match value:
        case None:
            return {name}
        case dict():
            return {each for key, inner in value.items() for each in unknown(inner, f"{name}.{key}")}
        case list():
            return {each for inner in value for each in unknown(inner, f"{name}[]")}
        case _:
            return set()


def test_what_is_known_of_the_live_host_is_known_from_its_bundle(tmp_path):
    write_bundle(tmp_path / "out.tar.zst", Path("/"), Need(), (str(tmp_path),))
    live = unknown(msgspec.to_builtins(read_facts(paths=(str(tmp_path),))))

    with opened_bundle(tmp_path / "out.tar.zst") as (root, manifest):
        assert set() == unknown(msgspec.to_builtins(read_facts(root, manifest.paths))) - live


def test_what_the_npus_tools_print_comes_along_without_serial_numbers(tmp_path, monkeypatch):
    tool = tmp_path / "npu-smi"
    tool.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'  info) cat "{NPU_SMI}";;\n'
        "  *board*) printf '\\tNPU ID           : 0\\n\\tSerial Number    : 033EFS10N1\\n';;\n"
        "  *) exit 1;;\n"
        "esac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    write_bundle(tmp_path / "out.tar.zst", Path("/"), Need())
    live = read_facts().npu_smi

    with opened_bundle(tmp_path / "out.tar.zst") as (root, _):
        kept = read_facts(root).npu_smi
        texts = "".join(path.read_text() for path in (root / "captured").iterdir())
    assert live is not None and kept is not None
    assert 8 == len(live.chips or ())
    assert (live.chips, live.boards) == (kept.chips, kept.boards)
    assert {each.line: each.outcome for each in live.commands} == {each.line: each.outcome for each in kept.commands}
    assert "033EFS10N1" not in texts


def test_what_the_host_was_held_against_comes_along(tmp_path):
    write_bundle(tmp_path / "out.tar.zst", HOSTS / "epyc-vm", NEED, ("/data/x",))

    with opened_bundle(tmp_path / "out.tar.zst") as (_, manifest):
        assert (NEED, ("/data/x",)) == (manifest.need, manifest.paths)


def test_the_same_host_makes_the_same_bytes(tmp_path):
    for name in "ab":
        write_bundle(tmp_path / name, HOSTS / "kunpeng-910b", NEED)

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_bundle_is_not_written_over_anything(tmp_path):
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(BundleError, match=r"thesis.txt: exists"):
        write_bundle(tmp_path / "thesis.txt", HOSTS / "epyc-vm", NEED)

    assert "years" == (tmp_path / "thesis.txt").read_text()


def test_nothing_is_left_where_a_bundle_could_not_be_written(tmp_path):
    with pytest.raises(BundleError, match="cannot be written"):
        write_bundle(tmp_path / "absent" / "out.tar.zst", HOSTS / "epyc-vm", NEED)

    assert [] == list(tmp_path.iterdir())


def test_links_of_a_live_host_stay_links_within_the_tree(tmp_path):
    (tmp_path / "host/sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "host/sys/devices/0000:00:01.0").mkdir(parents=True)
    (tmp_path / "host/sys/bus/pci/devices/0000:00:01.0").symlink_to("../../../devices/0000:00:01.0")
    for name, word in {"class": "0x010802", "vendor": "0x19e5", "device": "0x0123"}.items():
        (tmp_path / "host/sys/devices/0000:00:01.0" / name).write_text(word)
    write_bundle(tmp_path / "out.tar.zst", tmp_path / "host", Need())

    with opened_bundle(tmp_path / "out.tar.zst") as (root, _):
        assert (root / "sys/bus/pci/devices/0000:00:01.0").is_symlink()
        assert 0x0123 == (read_facts(root).pci or ())[0].device


# Hostile ones.


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, size
    return made


def sparse(name: str) -> tarfile.TarInfo:
    """A file of a few bytes that would read as 90 GB of zeros."""
    made = member(name, size=4)
    made.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "96636764160", "GNU.sparse.numblocks": "1"}
    return made


def packed(path: Path, *members: tarfile.TarInfo, content: bytes = MANIFEST) -> Path:
    stream = io.BytesIO()
    with tarfile.open(mode="w", fileobj=stream) as archive:
        archive.addfile(member("bundle.json", size=len(content)), io.BytesIO(content))
        for each in members:
            archive.addfile(each, io.BytesIO(bytes(each.size)) if each.isreg() else None)
    path.write_bytes(zstandard.compress(stream.getvalue()))
    return path


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([member("../evil")], "'../evil' is no path within it"),
        ([member("/etc/evil")], "'/etc/evil' is no path within it"),
        ([member("a/../../evil")], "is no path within it"),
        ([member("a\nb")], "is no path within it"),
        ([member("x", tarfile.SYMTYPE, "/etc/passwd")], "leads out of it"),
        ([member("a/x", tarfile.SYMTYPE, "../../etc")], "leads out of it"),
        ([member("x", tarfile.LNKTYPE, "bundle.json")], "neither a file, a folder nor a link"),
        ([member("x", tarfile.CHRTYPE)], "neither a file, a folder nor a link"),
        ([member("x", tarfile.BLKTYPE)], "neither a file, a folder nor a link"),
        ([member("x", tarfile.FIFOTYPE)], "neither a file, a folder nor a link"),
        ([member("x", tarfile.SYMTYPE, "y"), member("x/z", tarfile.SYMTYPE, "y")], "lies below 'x', which is a link"),
        ([member("x"), member("x")], "is there twice"),
        ([member("./x"), member("x", tarfile.SYMTYPE, "y")], "is there twice"),
        ([member("/".join("a" * 100))], "is too long a path"),
        ([member("bundle.json/x")], "cannot be read: "),
        ([sparse("x")], "neither a file, a folder nor a link"),
    ],
)
def test_members_that_could_do_harm_are_refused(tmp_path, members, says):
    path = packed(tmp_path / "evil.tar.zst", *members)
    with pytest.raises(BundleError) as refusal, opened_bundle(path):
        pass

    assert says in refusal.value.message
    assert [path] == list(tmp_path.iterdir())


def test_nothing_is_written_through_a_link_that_came_before(tmp_path):
    path = packed(tmp_path / "evil.tar.zst", member("x", tarfile.SYMTYPE, "y"), member("x/z", size=1))

    with pytest.raises(BundleError, match="cannot be read: File exists"), opened_bundle(path):
        pass


def test_two_links_that_lead_out_only_together_are_not_followed(tmp_path, monkeypatch):
    # "d/a/.." is d as it is written, and the folder above everything once d/a is followed.
    path = packed(tmp_path / "evil", member("d/a", tarfile.SYMTYPE, ".."), member("etc", tarfile.SYMTYPE, "d/a/.."))
    (tmp_path / "above").mkdir()
    (tmp_path / "above" / "os-release").write_text("PRETTY_NAME=stolen\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "above"))

    with opened_bundle(path) as (root, _):
        assert "PRETTY_NAME=stolen\n" == (root / "etc" / "os-release").read_text()
        assert None is read_facts(root).distribution


def test_a_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.tar.zst"
    made = io.BytesIO()
    with tarfile.open(mode="w", fileobj=made) as archive:
        archive.addfile(member("x", size=20 << 20), io.BytesIO(bytes(20 << 20)))
    path.write_bytes(zstandard.compress(made.getvalue()))

    with pytest.raises(BundleError, match=r"unpacks to more than 16.0 MiB"), opened_bundle(path):
        pass


def test_a_file_that_claims_more_than_it_brings_is_refused(tmp_path):
    head = member("x", size=1 << 40).tobuf(tarfile.GNU_FORMAT)
    path = tmp_path / "claims.tar.zst"
    path.write_bytes(zstandard.compress(head))

    with pytest.raises(BundleError, match=r"claims 1024.0 GiB|claims 1.0 TiB"), opened_bundle(path):
        pass


def test_headers_upon_headers_are_refused(tmp_path):
    path = tmp_path / "deep.tar.zst"
    path.write_bytes(zstandard.compress(member("x", tarfile.XHDTYPE).tobuf(tarfile.USTAR_FORMAT) * 5000))

    with pytest.raises(BundleError, match="is damaged, or no bundle"), opened_bundle(path):
        pass


def test_more_members_than_a_host_has_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "_MAX_MEMBERS", 10)
    path = packed(tmp_path / "many.tar.zst", *(member(f"{number}") for number in range(20)))

    with pytest.raises(BundleError, match="holds more than 10 members"), opened_bundle(path):
        pass


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "says nothing"),
        (b"", "says nothing"),
        (b'{"format": 9, "need": {}}', "is of format 9, this Trivet reads 1"),
    ],
)
def test_a_bundle_without_a_manifest_of_ours_is_refused(tmp_path, content, says):
    with pytest.raises(BundleError, match=says), opened_bundle(packed(tmp_path / "odd.tar.zst", content=content)):
        pass


@given(st.binary(max_size=2000), st.booleans())
def test_noise_is_refused(tmp_path_factory, noise, is_packed):
    path = tmp_path_factory.mktemp("noise") / "noise.tar.zst"
    path.write_bytes(zstandard.compress(noise) if is_packed else noise)

    with pytest.raises(BundleError), opened_bundle(path):
        pass


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "out.tar.zst"
    write_bundle(path, HOSTS / "epyc-vm", NEED)
    return zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())


@given(st.data())
def test_a_bundle_with_bytes_changed_gives_facts_or_is_refused(tmp_path_factory, sound, data):
    changed = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 8))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("changed")
    (folder / "x").write_bytes(zstandard.compress(bytes(changed[: data.draw(st.integers(0, len(changed)))])))
    try:
        facts = facts_of(folder / "x")
    except BundleError:
        return

    assert isinstance(facts, HostFacts)


# At the terminal.


def test_the_report_of_a_bundle_is_that_of_its_host(tmp_path):
    written = invoke("--root", HOSTS / "kunpeng-910b", "--bundle", tmp_path / "out.tar.zst")
    read = invoke("--from", tmp_path / "out.tar.zst")

    assert (HOSTS / "kunpeng-910b.txt").read_text() == written.stdout == read.stdout
    assert "look before you send it" in written.stderr


def test_the_filesystem_of_the_model_is_reported_from_a_bundle_too(tmp_path):
    model = tmp_path / "model.safetensors"
    model.write_bytes(bytes(100))
    written = invoke("--root", HOSTS / "kunpeng-910b", "--model", model, "--bundle", tmp_path / "out.tar.zst")

    assert written.stdout == invoke("--from", tmp_path / "out.tar.zst").stdout
    assert 2 == written.stdout.count("\n  disk ")


def test_a_bundle_is_held_against_another_need_where_one_is_named(tmp_path):
    write_bundle(tmp_path / "out.tar.zst", HOSTS / "kunpeng-container", replace(NEED, device="npu"))

    assert 2 == invoke("--from", tmp_path / "out.tar.zst").exit_code
    assert 0 == invoke("--from", tmp_path / "out.tar.zst", "--device", "cpu").exit_code


@pytest.mark.parametrize("options", [["--root", HOSTS], ["--bundle", "x.tar.zst"]])
def test_two_hosts_at_once_are_refused(tmp_path, options):
    path = packed(tmp_path / "out.tar.zst")

    assert "--from examines a host that was captured: leave out --" in invoke("--from", path, *options).output


def test_what_was_taken_is_said_in_the_readers_language(tmp_path):
    result = invoke("--root", HOSTS / "kunpeng-910b", "--bundle", tmp_path / "out.tar.zst", "--lang", "zh")

    assert "发送前请先查看" in result.stderr
    assert "look before" not in result.stderr


def test_what_stands_around_the_stack_comes_along_and_no_more_of_it(tmp_path):
    root = plant("a2", tmp_path / "host")
    checkpoint = {
        "Data": {"PodDeviceEntries": ["secret pod"], "RegisteredDevices": {"huawei.com/Ascend910": ["a", "b"]}}
    }
    mindie = "usr/local/Ascend/mindie/latest/mindie-service/conf/config.json"
    files = {
        "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": json.dumps(checkpoint),
        "var/log/mindx-dl/devicePlugin/devicePlugin.log": "[INFO] secret pod\n[ERROR] lib path is invalid\n",
        "etc/docker/daemon.json": json.dumps({"runtimes": {"ascend": {"path": "/x"}}, "auths": "secret pod"}),
        "etc/containerd/config.toml": "[plugins.cri.containerd.runtimes.runc]\noptions = 'secret pod'\n",
        "proc/7/comm": "raylet\n",
        "proc/7/cmdline": "raylet\0secret pod\0--static_resource_list=CPU,192,NPU,8\0",
        mindie: json.dumps({"ServerConfig": {"port": 1025}, "secret pod": 1}),
        "root/ascend/log/debug/plog/plog-9_20261129100000000.log": "[INFO] secret pod\n[ERROR] DRV(9): failed\n",
        "usr/local/python3.11/lib/python3.11/site-packages/vllm-0.23.0+empty.dist-info/METADATA":
            "Requires-Dist: torch==2.9.0\n\nsecret pod\n",
    }  # fmt: skip
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    write_bundle(tmp_path / "out.tar.zst", root, NEED)

    with opened_bundle(tmp_path / "out.tar.zst") as (there, _):
        here, kept = read_facts(root), read_facts(there)
        texts = "".join(path.read_text() for path in there.rglob("*") if path.is_file())
    assert None not in (
        kept.cluster.kubelet_devices,
        kept.cluster.ray_resources,
        kept.stack.mindie,
        kept.stack.python.unmet,
    )
    assert (here.cluster, here.plog, here.stack.mindie, here.stack.python) == (
        kept.cluster, kept.plog, kept.stack.mindie, kept.stack.python)  # fmt: skip
    assert "secret pod" not in texts
