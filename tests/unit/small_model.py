"""Small checkpoints made on the spot, and graphs with nothing but weights."""

import json
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from trivet.framework.graph.ir import Graph
from trivet.framework.graph.recipe import Recipe, Source
from trivet.framework.model.checkpoints.checkpoint import Checkpoint
from trivet.framework.model.checkpoints.digest import source_digest
from trivet.framework.model.config import parse_config
from trivet.framework.model.families import build_graph
from trivet.framework.model.injection import inject
from trivet.framework.model.journal import Journal
from trivet.framework.model.manifest import Manifest, write_manifest
from trivet.framework.model.package import Package, open_package
from trivet.framework.model.pieces import Piece
from trivet.framework.model.shards import SHARD_BYTES, plan_shards
from trivet.framework.model.tokenizer_files import write_tokenizer_files
from trivet.operators.contract import TensorSpec

TINY = Path(__file__).parents[1] / "fixtures" / "tiny"

LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "eos_token_id": 1,
}

_CODES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int8": "I8", "int32": "I32", "uint8": "F8_E4M3"}


def safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    """A safetensors file as its format's page describes it, uint16 standing for bfloat16, uint8 for e4m3."""
    header, end = {}, 0
    for name, array in tensors.items():
        offsets = [end, end + array.nbytes]
        header[name] = {"dtype": _CODES[str(array.dtype)], "shape": list(array.shape), "data_offsets": offsets}
        end += array.nbytes
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in tensors.values())


def write_folder(folder: Path, tensors: dict[str, np.ndarray], config: dict = LLAMA_CONFIG) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes((TINY / "llama" / "tokenizer.json").read_bytes())
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    return folder


def llama_tensors(config: dict = LLAMA_CONFIG) -> dict[str, np.ndarray]:
    """Every tensor of the model, bfloat16 bits of small random numbers."""
    rng = np.random.default_rng(0)
    sources = [source for recipe in build_graph(parse_config(config)).weights.values() for source in recipe.sources]
    return {
        source.tensor: (rng.standard_normal(source.shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        for source in sources
    }


def write_package(checkpoint: Checkpoint, graph: Graph, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> Package:
    """A package of any graph, also of one that computes nothing; every weight whole."""
    folder.mkdir()
    pieces = [Piece(name, None, recipe) for name, recipe in graph.weights.items()]
    shards = plan_shards(pieces, shard_bytes)
    with Journal(folder.with_name(f"{folder.name}.journal")) as journal:
        tensors, _ = inject(shards, checkpoint.read_rows, folder, journal, lambda num_bytes: None)
    write_tokenizer_files(checkpoint.tokenizer, folder)
    sizes = {shard.file: shard.num_bytes for shard in shards}
    dtype = next(recipe.dtype for recipe in graph.weights.values())
    digest, config = source_digest(checkpoint.path), parse_config(checkpoint.config)
    write_manifest(Manifest(config, dtype, 2, graph, checkpoint.path.name, digest, 1, sizes, tensors), folder)
    return open_package(folder)


def weights_graph(sources: dict[str, tuple[int, ...]], dtype: str = "bfloat16", panels: bool = False) -> Graph:
    """A graph whose weights are the named tensors as they are; matrices in panels if asked."""
    recipes = {
        f"w.{name}": Recipe(Source(name, shape), dtype, "panels" if panels and len(shape) == 2 else "rows")
        for name, shape in sources.items()
    }
    values = {name: TensorSpec(recipe.shape, recipe.dtype, recipe.layout) for name, recipe in recipes.items()}
    return Graph("weights", (), (), (), values, recipes, ())


def gguf_writer(path: Path, architecture: str = "llama", **changes: object) -> GGUFWriter:
    """A GGUF file with the metadata of a small model and a byte-level tokenizer; tensors are the caller's."""
    writer = GGUFWriter(path, architecture)
    sizes = {"block_count": 1, "context_length": 128, "embedding_length": 64, "feed_forward_length": 128,
             "attention.head_count": 4, "attention.head_count_kv": 2}  # fmt: skip
    for key, value in {**sizes, **changes}.items():
        writer.add_uint32(f"{architecture}.{key.replace('__', '.')}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    return writer


def add_tokenizer(writer: GGUFWriter, pre: str = "smollm", add_bos: bool | None = None) -> None:
    characters = [chr(i) for i in range(0x21, 0x7F)] + [chr(0x100 + i) for i in range(33)]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *characters, "12", "123", "[PAD]"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 4), 5])
    writer.add_token_merges(["1 2", "12 3"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
