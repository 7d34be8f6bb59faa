import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_model import weights_graph, write_folder, write_package

from trivet.base.errors import CheckpointError
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.manifest import layout_fingerprint
from trivet.framework.model.package import open_package

MATRIX = np.random.default_rng(0).standard_normal((40, 24)).astype(np.float32)
SHARD = "model-00001-of-00001.safetensors"


@pytest.fixture
def package(tmp_path):
    checkpoint = open_checkpoint(write_folder(tmp_path / "model", {"a": MATRIX, "v": MATRIX[0].copy()}))
    graph = weights_graph({"v": (24,), "a": (40, 24)}, "float32", panels=True)
    return write_package(checkpoint, graph, tmp_path / "package")


def change(package, key, value):
    path = package.path / "trivet.json"
    document = json.loads(path.read_text())
    *parents, last = key.split("/")
    place = document
    for parent in parents:
        place = place[int(parent) if isinstance(place, list) else parent]
    place[int(last) if isinstance(place, list) else last] = value
    path.write_text(json.dumps(document))


def test_a_package_opens_as_it_was_written(package):
    opened = open_package(package.path)

    assert (package.config, package.graph, package.dtype, package.level, package.tokenizer) == (
        opened.config,
        opened.graph,
        opened.dtype,
        opened.level,
        opened.tokenizer,
    )
    assert ("model", package.source_digest) == (opened.source_name, opened.source_digest)
    assert [(name, array.tobytes()) for name, array in package.weights.items()] == [
        (name, array.tobytes()) for name, array in opened.weights.items()
    ]
    assert 4 * (24 + 64 * 24) == opened.weight_bytes


def test_every_tensor_begins_on_a_page_in_the_order_of_the_graph(package):
    document = json.loads((package.path / "trivet.json").read_text())
    offsets = [piece["offset"] for (piece,) in document["tensors"].values()]
    header_bytes = int.from_bytes((package.path / SHARD).read_bytes()[:8], "little")

    assert ["w.v", "w.a"] == list(document["tensors"])
    assert [8 + header_bytes, 8 + header_bytes + 4096] == offsets
    assert [0, 0] == [offset % 4096 for offset in offsets]
    assert [0, 0] == [array.ctypes.data % 4096 for array in package.weights.values()]


def test_the_manifest_says_where_it_came_from(package):
    document = json.loads((package.path / "trivet.json").read_text())

    assert (3, "float32", 2) == (document["format"], document["dtype"], document["level"])
    assert {"name": "model", "digest": package.source_digest} == document["source"]
    assert [{"file": SHARD, "bytes": (package.path / SHARD).stat().st_size}] == document["shards"]
    assert layout_fingerprint(package.graph) == document["fingerprint"]


def test_weights_cannot_be_written(package):
    with pytest.raises(ValueError, match="read-only"):
        package.weights["w.a"][0] = 1


def test_the_fingerprint_tells_layouts_apart():
    shapes = {"a": (40, 24)}
    fingerprints = {
        layout_fingerprint(graph)
        for graph in (
            weights_graph(shapes),
            weights_graph(shapes, panels=True),
            weights_graph(shapes, "float32"),
            weights_graph({"b": (40, 24)}),
        )
    }

    assert 4 == len(fingerprints)
    assert layout_fingerprint(weights_graph(shapes)) in fingerprints


@given(st.sampled_from(["w.v", "w.a"]), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_byte_of_a_weight_is_found(package, name, place, change):
    tensor = json.loads((package.path / "trivet.json").read_text())["tensors"][name][0]
    offset = tensor["offset"] + int(place * tensor["bytes"])
    content = (package.path / SHARD).read_bytes()
    changed = bytes([content[offset] ^ change])
    (package.path / SHARD).write_bytes(content[:offset] + changed + content[offset + 1 :])

    with pytest.raises(CheckpointError, match=f"{SHARD}: tensor {name} at byte {tensor['offset']} has the checksum"):
        open_package(package.path)
    open_package(package.path, verify=False)
    (package.path / SHARD).write_bytes(content)


def test_a_newer_package_says_what_to_do(package):
    change(package, "format", 7)

    with pytest.raises(CheckpointError, match=r"package format 7 is newer than this trivet \(3\)\n.*upgrade trivet"):
        open_package(package.path)


def test_a_missing_shard_is_named(package):
    (package.path / SHARD).unlink()

    with pytest.raises(CheckpointError, match=f"{SHARD} is missing"):
        open_package(package.path)


def test_a_truncated_shard_says_how_much_is_wanted(package):
    size = (package.path / SHARD).stat().st_size
    with (package.path / SHARD).open("r+b") as file:
        file.truncate(size - 1)

    with pytest.raises(CheckpointError, match=f"{SHARD} is {size - 1} bytes, {size} wanted"):
        open_package(package.path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", None, "has no format number"),
        ("fingerprint", "0", "laid out as another version of trivet"),
        ("dtype", "float31", "damaged.*dtype float31"),
        ("graph", {}, "damaged.*name"),
        ("tensors", {}, "damaged.*tensors and the graph's weights differ"),
        ("tensors/w.a/0/offset", -4096, "damaged.*tensor w.a has numbers that are none"),
        ("tensors/w.a/0/offset", 1 << 40, "damaged.*tensor w.a lies outside its shard"),
        ("tensors/w.a/0/bytes", 4, "damaged.*tensor w.a has the wrong number of bytes"),
        ("tensors/w.a/0/shape", [1], "damaged.*tensor w.a is not what the graph takes"),
        ("tensors/w.a/0/shard", "other", "damaged.*other"),
        ("tensors/w.a/0/offset", 4096.0, "damaged.*tensor w.a has numbers that are none"),
        ("tensors/w.a/0/xxh3", "none", "damaged.*none"),
        ("tensors/w.a/0/xxh3", "1" * 17, "damaged.*tensor w.a has numbers that are none"),
        ("tensors/w.v/0/offset", 8192, "damaged.*tensors overlap"),
        ("graph/weights/w.v/shape", [-24], r"damaged.*v has the shape \[-24\]"),
        ("graph/values/w.v/0", [24.0], "damaged.*a value has the axes"),
        ("graph/values/w.v/1", "float31", "damaged.*a value is float31 in rows"),
        ("config/max_context", "long", "damaged.*max_context is 'long'"),
        ("config/rope_theta", 0, "damaged.*rope_theta is 0"),
        ("tensors/w.a/0/offset", 4097, "damaged.*tensor w.a lies outside its shard, or not on a page"),
        ("tensors/w.a", [], "damaged.*tensor w.a has 0 pieces for 1 ranks"),
        ("tensor_parallel", 0, "damaged.*tensor_parallel 0"),
        ("tensor_parallel", 2, "laid out as another version"),
        ("format", 2, r"package format 2 is older than this trivet reads \(3\)"),
        ("shards", [{"file": "../x", "bytes": 1 << 41}], "damaged.*not a plain file name"),
        ("config/hidden", 3, "damaged.*hidden"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(package, key, value, message):
    change(package, key, value)

    with pytest.raises(CheckpointError, match=message):
        open_package(package.path)


def test_a_folder_that_is_no_package_says_how_to_make_one(tmp_path):
    with pytest.raises(CheckpointError, match=r"is not a package\n.*trivet convert"):
        open_package(tmp_path)
