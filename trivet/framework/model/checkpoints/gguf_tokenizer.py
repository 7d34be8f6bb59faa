"""The tokenizer that a GGUF file describes, rebuilt as tokenizer.json: byte-level BPE by its pre-tokenizer's name.

The file has vocabulary and merges; how text is split before them it only names. The expressions are those of the
models' published tokenizer.json files, which llama.cpp knows under the same names (llama-vocab.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from trivet.base.errors import CheckpointError
from trivet.framework.model.tokenizer_files import TokenizerFiles

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # values of tokenizer.ggml.token_type
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Tokens that end a turn or a text in the families read here; a file names one as eos, generation stops at each.
_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")


def _split_words(digits: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS.format(digits=digits)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _split_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": _split_digits,
    "qwen2": lambda: _split_words(r"\p{N}"),
    "llama-bpe": lambda: _split_words(r"\p{N}{1,3}"),
}


def read_gguf_tokenizer(path: Path, metadata: Mapping[str, Any]) -> TokenizerFiles:
    """Raises CheckpointError when the tokenizer is of another kind, or its parts do not fit together."""

    def value(key: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}", default)

    kind, pre = value("model"), value("pre")
    if kind != "gpt2" or not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"{path}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not known",
            f"known are 'gpt2' with {', '.join(_PRE_TOKENIZERS)}; otherwise use the model's folder with tokenizer.json",
        )
    tokens, types, merges = value("tokens"), value("token_type"), value("merges")
    if not isinstance(tokens, list) or not isinstance(types, list) or not isinstance(merges, list):
        raise CheckpointError(f"{path}: the tokenizer is incomplete, tokens, token_type and merges were wanted")
    ids = {key: value(f"{key}_token_id") for key in ("bos", "eos", "padding", "eot", "eom")}
    if len(types) != len(tokens):
        raise CheckpointError(f"{path}: the tokenizer has {len(tokens)} tokens, and types for {len(types)}")
    for key, i in ids.items():
        if i is not None and not (isinstance(i, int) and 0 <= i < len(tokens)):
            raise CheckpointError(f"{path}: tokenizer.ggml.{key}_token_id is {i!r}, one of {len(tokens)} was wanted")
    bos = ids["bos"]
    # llama.cpp's default where a file does not say: only the Llama 3 tokenizer begins a text with bos.
    adds_bos = bos is not None and bool(value("add_bos_token", pre == "llama-bpe"))
    try:
        tokenizer = _build(pre, tokens, types, merges, bos if adds_bos else None)
    except Exception as error:  # the tokenizers package raises bare Exception
        raise CheckpointError(f"{path}: the tokenizer cannot be built: {error}") from None
    end_ids = {ids["eos"], ids["eot"], ids["eom"]} - {None}
    end_ids |= {i for i, token in enumerate(tokens) if types[i] == _CONTROL and token in _END_TOKENS}
    names = {"bos_token": bos, "eos_token": ids["eos"], "pad_token": ids["padding"]}
    generation = {"bos_token_id": bos, "eos_token_id": sorted(end_ids), "pad_token_id": ids["padding"]}
    template = metadata.get("tokenizer.chat_template")
    return TokenizerFiles(
        tokenizer=tokenizer.to_str().encode(),
        tokenizer_config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "add_bos_token": adds_bos,
            **{key: tokens[i] for key, i in names.items() if i is not None},
        },
        chat_template=template if isinstance(template, str) else None,
        generation_config={key: i for key, i in generation.items() if i is not None},
    )


def _build(pre: str, tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], bos: int | None) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(tokens) if types[i] != _UNUSED}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    # Llama 3's vocabulary has whole words that its merges do not reach: a known word is taken before merging.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(tokens[i], special=kind == _CONTROL, normalized=False)
            for i, kind in enumerate(types)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    steps: list[Any] = [processors.ByteLevel(trim_offsets=False)]
    if bos is not None:
        name = tokens[bos]
        steps.append(processors.TemplateProcessing(f"{name}:0 $A:0", f"{name}:0 $A:0 $B:0", [(name, bos)]))
    tokenizer.post_processor = processors.Sequence(steps)
    return tokenizer
