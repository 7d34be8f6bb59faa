"""One model as every engine reads it: GGUF files in 16 and 8 bits and a Hugging Face folder, of the same numbers.

It starts from a GGUF file, since that holds the tokenizer too. A form is written when it is first asked for, and found
again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np

from trivet.base.dtypes import Array, cast, rounded
from trivet.base.errors import TrivetError
from trivet.framework.model.checkpoints.checkpoint import Checkpoint
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.checkpoints.safetensors_header import format_header
from trivet.framework.model.tokenizer_files import write_tokenizer_files

_TYPES = {
    "bf16.gguf": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "f16.gguf": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0.gguf": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
_ORIGIN = "bf16.gguf"  # every other form is made of this one

Form = Literal["bf16.gguf", "f16.gguf", "q8_0.gguf", "hf"]

# A Llama of 1.1 billion parameters: the shape of TinyLlama 1.1B, which many small models share.
_SHAPE_1B = {"block_count": 22, "embedding_length": 2048, "feed_forward_length": 5632, "attention.head_count": 32,
             "attention.head_count_kv": 4, "rope.dimension_count": 64, "context_length": 4096}  # fmt: skip
_NAME_OF_RANDOM = "llama-1.1b-random"
_DEVIATION = 0.02  # of random weights, as models are initialised


@dataclass(frozen=True)
class Weights:
    """Every number is rounded to bfloat16 first, so that all forms but the 8-bit ones hold the same values."""

    name: str
    folder: Path

    def form(self, name: Form, tell: Callable[[str], None]) -> Path:
        """The file or folder, written now if it never was: the forms of a large model take many gigabytes."""
        path = self.folder / name
        if name == "hf":
            _once(path, lambda made: _write_folder(open_checkpoint(self.folder / _ORIGIN), made), tell)
        else:
            _once(path, lambda made: _write_gguf(self.folder / _ORIGIN, name, made), tell)
        return path


def weights_of(source: Path, home: Path, tell: Callable[[str], None]) -> Weights:
    """The model of `source`, under `home`. Raises TrivetError where the source is no GGUF file."""
    if source.suffix != ".gguf":
        raise TrivetError(f"{source}: a GGUF file was wanted, the form that holds a tokenizer for every engine",
                          "name a .gguf file, such as the demo's")  # fmt: skip
    return _written(source.stem, home, lambda made: _write_gguf(source, _ORIGIN, made), tell)


def random_weights(source: Path, home: Path, tell: Callable[[str], None]) -> Weights:
    """A Llama of 1.1 billion random parameters, with the tokenizer of `source`, under `home`."""
    return _written(_NAME_OF_RANDOM, home, lambda made: _write_random(source, made), tell)


def first_layers(source: Path, num_layers: int, path: Path) -> None:
    """Write to `path` what the GGUF file `source` has, but for the layers behind the first `num_layers`."""
    reader = gguf.GGUFReader(source)
    block_count = f"{reader.fields['general.architecture'].contents()}.block_count"
    writer = _writer(reader, path, {block_count: num_layers})
    for tensor in reader.tensors:
        _, _, rest = tensor.name.partition("blk.")
        if not rest or int(rest.split(".")[0]) < num_layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _finish(writer)


def _written(name: str, home: Path, write: Callable[[Path], None], tell: Callable[[str], None]) -> Weights:
    weights = Weights(name, home / f"{name}-weights")
    weights.folder.mkdir(parents=True, exist_ok=True)
    _once(weights.folder / _ORIGIN, write, tell)
    return weights


def _once(path: Path, write: Callable[[Path], None], tell: Callable[[str], None]) -> None:
    """Under its own name only when whole: an interrupted run leaves nothing that looks finished."""
    if path.exists():
        return
    tell(f"writing {path}")
    unfinished = path.with_name(f"{path.name}.unfinished")
    if unfinished.is_dir():
        shutil.rmtree(unfinished)
    write(unfinished)
    unfinished.rename(path)


def _write_gguf(source: Path, name: str, path: Path) -> None:
    reader = gguf.GGUFReader(source)
    matrices, file_type = _TYPES[name]
    writer = _writer(reader, path, {"general.file_type": int(file_type)})
    for tensor in reader.tensors:
        # Norms, vectors, stay as they are: every engine keeps them in float32.
        wanted = matrices if len(tensor.shape) > 1 else gguf.GGMLQuantizationType.F32
        values = rounded(gguf.dequantize(tensor.data, tensor.tensor_type), "bfloat16")
        _add(writer, tensor.name, values, wanted)
    _finish(writer)


def _write_random(source: Path, path: Path) -> None:
    reader = gguf.GGUFReader(source)
    changed = {f"llama.{key}": value for key, value in _SHAPE_1B.items()}
    writer = _writer(reader, path, {**changed, "general.file_type": int(_TYPES[_ORIGIN][1])})
    rng = np.random.default_rng(0)
    hidden, inner = _SHAPE_1B["embedding_length"], _SHAPE_1B["feed_forward_length"]
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].contents())
    kv = hidden // _SHAPE_1B["attention.head_count"] * _SHAPE_1B["attention.head_count_kv"]
    layer = {"attn_q": (hidden, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden),
             "attn_output": (hidden, hidden), "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden),
             "ffn_down": (hidden, inner)}  # fmt: skip
    matrices = {"token_embd": (vocabulary, hidden), "output": (vocabulary, hidden)}
    matrices |= {f"blk.{i}.{name}": shape for i in range(_SHAPE_1B["block_count"]) for name, shape in layer.items()}
    norms = [
        "output_norm",
        *(f"blk.{i}.{each}_norm" for i in range(_SHAPE_1B["block_count"]) for each in ("attn", "ffn")),
    ]
    for name, shape in matrices.items():
        values = rounded(rng.standard_normal(shape, np.float32) * np.float32(_DEVIATION), "bfloat16")
        _add(writer, f"{name}.weight", values, gguf.GGMLQuantizationType.BF16)
    for name in norms:
        _add(writer, f"{name}.weight", np.ones(hidden, np.float32), gguf.GGMLQuantizationType.F32)
    _finish(writer)


def _writer(reader: gguf.GGUFReader, path: Path, changed: dict[str, Any]) -> gguf.GGUFWriter:
    """A writer with the metadata of `reader`, but for what is changed."""
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture, use_temp_file=True)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.quantization_version"):
            continue
        kind = field.types[0]
        parts = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, changed.get(name, field.contents()), kind, sub_type=parts)
    for name in changed.keys() - reader.fields.keys():
        writer.add_uint32(name, changed[name])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    return writer


def _add(writer: gguf.GGUFWriter, name: str, values: Array, kind: gguf.GGMLQuantizationType) -> None:
    writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_folder(checkpoint: Checkpoint, folder: Path) -> None:
    """As transformers reads it, in bfloat16. Tensors go through memory one at a time."""
    folder.mkdir()
    config = {**checkpoint.config, "torch_dtype": "bfloat16", "attention_bias": False, "mlp_bias": False}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_tokenizer_files(checkpoint.tokenizer, folder)
    entries = [entry for name, entry in checkpoint.tensors.items()
               if not (config["tie_word_embeddings"] and name == "lm_head.weight")]  # fmt: skip
    with (folder / "model.safetensors").open("wb") as file:
        file.write(format_header([(each.name, "BF16", each.shape, 2 * prod(each.shape)) for each in entries], 8))
        for each in entries:
            rows, dtype = checkpoint.read_rows(each.name, 0, each.shape[0])
            file.write(cast(rows, dtype, "bfloat16").tobytes())
