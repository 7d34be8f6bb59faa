"""PyTorch's files are read in place, and a hostile one makes an error: it is never run, never read past its end."""

import json
import os
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_model import TINY, write_folder
from torch_file import group, name, number, program, storage, tensor, text, write_torch, write_zip

from trivet.base.errors import CheckpointError
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.checkpoints.stored import read_stored_rows
from trivet.framework.model.checkpoints.torch_pickle import UnsafePickle, load_pickle
from trivet.framework.model.checkpoints.torch_zip import read_torch_header
from trivet.framework.model.convert import convert

SAVED = TINY.parent / "torch"
X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def read(path):
    """Every tensor of the file that is in a format read here."""
    tensors = {}
    for each in read_torch_header(path):
        rows = each.shape[0] if each.shape else 1
        if each.dtype in ("F32", "F16", "BF16", "F8_E4M3") and each.shape:
            tensors[each.name] = read_stored_rows(path, each, 0, rows)[0]
    return tensors


@pytest.mark.parametrize("file", ["state_dict.bin", "training.pt"])
def test_what_pytorch_saved_is_read(file):
    shared = np.arange(24, dtype=np.float32).reshape(6, 4)
    wanted = dict.fromkeys(["weight", "half", "float8", "parameter"], X)
    wanted |= {"bias": X[:, 0], "rows": shared[2:4], "whole": shared, "tied": shared, "empty": X[:0]}
    wanted["bfloat16"] = (X.view(np.uint32) >> 16).astype(np.uint16)
    formats = {each.name: each.dtype for each in read_torch_header(SAVED / file)}
    found = read(SAVED / file)

    assert {"int64": "I64", "bool": "BOOL", "float64": "F64", "scalar": "F32"}.items() <= formats.items()
    assert wanted.keys() == found.keys()
    for key, array in wanted.items():
        np.testing.assert_array_equal(array, found[key], err_msg=key)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("transposed.pth", r"tensor w \[4, 3\] lies in strides \[1, 4\].*\n.*contiguous"),
        ("module.pt", r"its pickle is no state dict: it .*torch\.nn\.modules\.linear\.Linear"),
        ("legacy.bin", "is no zip: a file of PyTorch before 1.6"),
    ],
)
def test_what_pytorch_saved_and_is_no_plain_state_dict_is_refused_with_what_to_do(file, message):
    with pytest.raises(CheckpointError, match=message):
        read_torch_header(SAVED / file)


@pytest.fixture
def llama():
    """The tiny Llama's tensors, bfloat16 as bits."""
    checkpoint = open_checkpoint(TINY / "llama")
    return {key: checkpoint.read_rows(key, 0, entry.shape[0])[0] for key, entry in checkpoint.tensors.items()}


def torch_folder(folder, shards):
    """A checkpoint folder whose tensors are in PyTorch's files."""
    write_folder(folder, {}, json.loads((TINY / "llama" / "config.json").read_text()))
    (folder / "model.safetensors").unlink()
    for file, tensors in shards.items():
        write_torch(folder / file, tensors)
    return folder


@pytest.mark.parametrize("file", ["pytorch_model.bin", "consolidated.pth", "model.pt"])
def test_a_folder_of_pytorch_gives_the_package_of_safetensors(tmp_path, llama, file):
    wanted = convert(TINY / "llama", tmp_path / "wanted").package
    found = convert(torch_folder(tmp_path / "model", {file: llama}), tmp_path / "found").package

    assert wanted.graph == found.graph
    for key, array in wanted.weights.items():
        np.testing.assert_array_equal(array, found.weights[key])


def test_shards_of_pytorch_belong_together_by_their_index(tmp_path, llama):
    names = list(llama)
    files = {f"pytorch_model-0000{i + 1}-of-00002.bin": names[i::2] for i in range(2)}
    folder = torch_folder(tmp_path, {file: {key: llama[key] for key in own} for file, own in files.items()})
    index = {key: file for file, own in files.items() for key in own}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))

    assert set(names) == set(open_checkpoint(folder).tensors)
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 2 shards are missing: pytorch_model-00002-of-00002\.bin"):
        open_checkpoint(folder)


def test_of_both_formats_safetensors_are_read(tmp_path, llama):
    folder = torch_folder(tmp_path, {"pytorch_model.bin": llama})
    (folder / "model.safetensors").write_bytes((TINY / "llama" / "model.safetensors").read_bytes())

    assert (folder / "model.safetensors",) == open_checkpoint(folder).files


def test_one_file_alone_says_to_give_its_folder(tmp_path, llama):
    folder = torch_folder(tmp_path, {"pytorch_model.bin": llama})
    with pytest.raises(CheckpointError, match=r"is one file of a checkpoint\n.*give its folder"):
        open_checkpoint(folder / "pytorch_model.bin")


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_what_a_pickle_would_run_is_named_and_not_run(tmp_path):
    hostile = pickle.dumps({"w": Attack(tmp_path / "made")}, protocol=2)

    with pytest.raises(CheckpointError, match=r"it names posix\.mkdir, which a state dict does not need"):
        read_torch_header(write_zip(tmp_path / "x.bin", hostile, {}))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("payload", [Attack("/nonexistent/x"), Attack, print, Path("x"), {1, 2}, object(), b"bytes"])
def test_nothing_but_tensors_and_containers_can_be_made(payload, protocol):
    with pytest.raises(UnsafePickle):
        load_pickle(pickle.dumps({"w": payload}, protocol))


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
                    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(0, 9),
                                                                                        inner)))  # fmt: skip
def test_containers_come_back_as_they_were(value):
    assert value == load_pickle(pickle.dumps(value, protocol=2))


@given(st.binary(max_size=60))
def test_any_bytes_are_an_error_or_a_value(hostile):
    with suppress(UnsafePickle):
        load_pickle(hostile)


LOOPS = {
    "a list in itself": b"]q\x00h\x00a.",
    "a dict in itself": b"}q\x00" + text("x") + b"h\x00s.",
    "pairs of pairs of pairs": b"Nq\x00" + b"h\x00h\x00\x86q\x00" * 99 + b".",
    "a place far out in the memo": b"Nr\xff\xff\xff\xff.",
    "deep": b"(" * 100_000 + b"t" * 100_000 + b".",
}
WRONG = {
    "a key of pairs of pairs": b"}Nq\x00" + b"h\x00h\x00\x86q\x00" * 99 + b"Ns.",
    "such a key in an OrderedDict": name("collections", "OrderedDict") + b")RNq\x00" + b"h\x00h\x00\x86q\x00" * 99
    + b"Ns.",
    "a shape that is a list, copied as often as it is named": name("torch", "Size") + b"](K\x01e\x85R.",
    "an OrderedDict of a list": name("collections", "OrderedDict") + b"](" + text("x") + b"N\x86e\x85R.",
    "a call with a thousand arguments": name("torch._utils", "_rebuild_parameter") + b"(" + b"N" * 1000 + b"tR.",
    "a dtype of pairs of pairs": name("torch._utils", "_rebuild_tensor_v3") + b"(" + storage("0", "FloatStorage", 1)
    + b"K\x00))\x89NNq\x00" + b"h\x00h\x00\x86q\x00" * 99 + b"tR.",
    "a reference that is none": b"Nq\x00" + b"h\x00h\x00\x86q\x00" * 99 + b"Q.",
    "a call of a list": b"](tR.",
    "a call of a storage class": name("torch", "FloatStorage") + b")R.",
    "nothing on the stack": b"0.",
    "no mark": b"Nt.",
    "a mark taken for a value": b"(\x85.",
    "an end in a number": b"J\x00",
    "no end": b"N",
    "text that is longer than the file": b"X\xff\xff\xff\x7fabc.",
    "an unknown place in the memo": b"h\x07.",
    "an extension": b"\x82\x01.",
    "attributes of a tensor": tensor("0", "FloatStorage", 1, (1,), (1,)) + b"}b.",
    "a tensor of a number": name("torch._utils", "_rebuild_tensor_v2") + group(b"K\x00", b"K\x00", b")", b")") + b"R.",
}  # fmt: skip


@pytest.mark.parametrize("case", LOOPS)
def test_containers_without_end_are_made_and_not_walked(case):
    load_pickle(LOOPS[case])


@pytest.mark.parametrize("case", WRONG)
def test_a_program_that_no_state_dict_needs_is_refused_at_once(case):
    with pytest.raises(UnsafePickle):
        load_pickle(WRONG[case])


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (tensor("0", "FloatStorage", 12, (3, 5), (5, 1)), "wants 60 bytes at 0 of its record, which has 48"),
        (tensor("0", "FloatStorage", 12, (3, 4), (4, 1), offset=1), "wants 48 bytes at 4 of its record, which has 48"),
        (tensor("0", "FloatStorage", 12, (3, 4), (4, 1), offset=-1), "a shape, strides or an offset that are none"),
        (tensor("0", "FloatStorage", 12, (-3, -4), (4, 1)), "a shape, strides or an offset that are none"),
        (tensor("0", "FloatStorage", 12, (2**62, 2**62), (4, 1)), r"wants \d+ bytes at 0"),
        (tensor("0", "FloatStorage", 12, (3, 4), (1,)), "a shape, strides or an offset that are none"),
        (tensor("0", "FloatStorage", 12, (1,) * 9, (1,) * 9), "a shape, strides or an offset that are none"),
        (tensor("0", "FloatStorage", 12, (3, 4), (0, 1)), r"lies in strides \[0, 1\]"),
        (tensor("../0", "FloatStorage", 12, (3, 4), (4, 1)), r"in the record \.\./0, which is missing"),
        (tensor("0", "DoubleStorage", 12, (3, 4), (4, 1)), "wants 96 bytes"),
        (number(3), "holds no tensors by name"),
    ],
)
def test_what_a_pickle_says_of_a_tensor_is_not_taken_on_trust(tmp_path, pickled, message):
    path = write_zip(tmp_path / "x.bin", program({"w": pickled}), {"0": X.tobytes()})
    with pytest.raises(CheckpointError, match=message):
        read_torch_header(path)


def test_a_compressed_file_is_refused(tmp_path):
    path = write_zip(tmp_path / "x.bin", program({}), {"0": bytes(100)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match=r"archive/\S+ is compressed or encrypted"):
        read_torch_header(path)


def test_big_endian_numbers_are_refused(tmp_path):
    path = write_torch(tmp_path / "x.bin", {"w": X})
    path.write_bytes(path.read_bytes().replace(b"little", b"big\0\0\0"))
    with pytest.raises(CheckpointError, match="big-endian"):
        read_torch_header(path)


def test_a_pickle_of_unheard_of_size_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"its pickle is 16\.\d MiB"):
        read_torch_header(write_zip(tmp_path / "x.bin", bytes(17_000_000), {}))


def test_a_file_beyond_four_gigabytes_is_read_by_its_wide_fields(tmp_path):
    path = tmp_path / "x.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a/data.pkl", program({"w": tensor("0", "FloatStorage", 12, (3, 4), (4, 1))}))
        archive.fp.seek((5 << 30) - archive.fp.tell(), 1)  # a hole
        archive.start_dir = archive.fp.tell()
        archive.writestr("a/data/0", X.tobytes())

    np.testing.assert_array_equal(X, read(path)["w"])


def test_members_that_overlap_or_repeat_are_refused(tmp_path):
    path = write_torch(tmp_path / "x.bin", {"w": X, "v": X})
    content = path.read_bytes()
    repeated = content.replace(b"archive/data/1", b"archive/data/0")
    path.write_bytes(repeated)
    with pytest.raises(CheckpointError, match="archive/data/0 is there twice"):
        read_torch_header(path)

    first, second = (content.index(b"archive/data/" + key) - 30 for key in (b"0", b"1"))
    entry = content.rindex(b"archive/data/1") - 46
    overlapping = content[: entry + 42] + first.to_bytes(4, "little") + content[entry + 46 :]
    assert second.to_bytes(4, "little") == content[entry + 42 : entry + 46]
    path.write_bytes(overlapping)
    with pytest.raises(CheckpointError, match="overlaps the member before it"):
        read_torch_header(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_to_a_file_is_an_error_of_ours_or_leaves_tensors_within_it(tmp_path, data):
    content = bytearray((SAVED / "state_dict.bin").read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    try:
        found = read_torch_header(path)
    except CheckpointError:
        return
    assert all(0 <= each.offset and each.offset + each.num_bytes <= len(content) for each in found)
