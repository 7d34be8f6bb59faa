"""Text to token ids and back, and text as it comes, one token at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tokenizers

from trivet.base.errors import CheckpointError, RequestError
from trivet.framework.model.tokenizer_files import TokenizerFiles

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # SentencePiece's; <0xyz> is a token like any other


class Tokenizer:
    """A model's tokenizer. Immutable; safe to use from several threads."""

    def __init__(self, files: TokenizerFiles) -> None:
        """Raises CheckpointError when tokenizer.json is not one, or names special tokens that it does not have."""
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(files.tokenizer)
            # Its own state, a hundred bytes: the file, megabytes of JSON, would be parsed twice.
            decoder = json.loads(self._tokenizer.decoder.__getstate__()) if self._tokenizer.decoder else None
        except Exception as error:  # the tokenizers package raises bare Exception
            raise CheckpointError(f"tokenizer.json cannot be used: {error}", "copy the file again") from None
        # Settings of someone's training run that some published files still carry
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        decoders = set(_types(decoder))
        self._is_byte_level = "ByteLevel" in decoders
        # SentencePiece puts a space before a text; its decoders take it away again.
        self.begins_with_space = not decoders.isdisjoint(("Strip", "Metaspace"))
        added_tokens = self._tokenizer.get_added_tokens_decoder()
        self._added = {i: token.content for i, token in added_tokens.items()}
        self.special_ids = frozenset(i for i, token in added_tokens.items() if token.special)
        self.bos_id = self._bos_id(files)
        self.eos_ids = self._eos_ids(files)
        self._whole_texts: dict[int, str | None] = {}  # filled as they are asked for
        self._adds_special = files.tokenizer_config.get("add_bos_token") is not False
        added = self._tokenizer.encode("", add_special_tokens=True).ids
        wants_bos = files.tokenizer_config.get("add_bos_token") is True
        self._prefix = [self.bos_id] if wants_bos and self.bos_id is not None and self.bos_id not in added else []

    @property
    def vocab_size(self) -> int:
        """How many tokens it knows; a model's own vocab_size may be larger, padded for its kernels."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """The ids of `text`; with `add_special`, begun (and ended) as the tokenizer's files say.

        A text that a chat template made has its special tokens already: encode it without. Raises RequestError for half
        a character of UTF-16, which is no text.
        """
        try:
            found = self._tokenizer.encode(text, add_special_tokens=add_special and self._adds_special)
        except (TypeError, ValueError) as error:  # what came as bytes that are no UTF-8 is no text to it
            raise RequestError(f"the text is none that has tokens: {error}", "give it in UTF-8", "prompt") from None
        return self._prefix + found.ids if add_special else found.ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        stream = self.stream(skip_special)
        return "".join(stream.push(token_id) for token_id in ids) + stream.flush()

    def stream(self, skip_special: bool = True) -> TextStream:
        return TextStream(self, skip_special)

    def token_text(self, token_id: int) -> str:
        """The token by itself, a part of a character shown as U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def whole_text(self, token_id: int) -> str | None:
        """The text of the token where its bytes are whole characters; None where they are parts of some."""
        if token_id not in self._whole_texts:
            try:
                self._whole_texts[token_id] = self.token_bytes(token_id).decode()
            except UnicodeDecodeError:
                self._whole_texts[token_id] = None
        return self._whole_texts[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for; none for an id that the tokenizer does not know."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            return b"".join(_BYTES.get(character, character.encode()) for character in token)
        if _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(token[3:5])
        return token.replace("▁", " ").encode()

    def _bos_id(self, files: TokenizerFiles) -> int | None:
        token = files.special_token("bos_token")
        if token is not None:
            return self._tokenizer.token_to_id(token)
        bos = files.generation_config.get("bos_token_id")  # -1 in some files
        return bos if type(bos) is int and 0 <= bos < self.vocab_size else None

    def _eos_ids(self, files: TokenizerFiles) -> frozenset[int]:
        """Every token that ends a generation: those of the generation defaults and the tokenizer's own."""
        published = files.generation_config.get("eos_token_id")
        ids = published if isinstance(published, list) else [published]
        token = files.special_token("eos_token")
        if token is not None:
            ids = [*ids, self._tokenizer.token_to_id(token)]
        if not all(i is None or isinstance(i, int) for i in ids):
            raise CheckpointError(
                f"generation_config.json: eos_token_id is {published!r}, an id or several were wanted"
            )
        return frozenset(i for i in ids if i is not None)


class TextStream:
    """The text of a sequence as its tokens come. What may still be part of a character is held back.

    The text of tokens is that of their bytes, joined. The `tokenizers` package's own stream decodes strings instead,
    and raises on byte tokens that are no UTF-8, which any model can sample.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._drops_space = tokenizer.begins_with_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_within = False  # a character: its first bytes are held back

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; often a word, sometimes nothing."""
        if token_id in self._skipped:
            return ""
        text = None if self._is_within else self._tokenizer.whole_text(token_id)
        if text is None:
            text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
            self._is_within = self._decoder.getstate()[0] != b""
        return self._begun(text) if self._drops_space else text

    def flush(self) -> str:
        """What was held back, at the end of the sequence: U+FFFD where a character stayed incomplete."""
        return self._begun(self._decoder.decode(b"", final=True))

    def _begun(self, text: str) -> str:
        """`text`, if it is the first that is not empty, without the space that the tokenizer put before."""
        if not text or not self._drops_space:
            return text
        self._drops_space = False
        return text.removeprefix(" ")


def _types(decoder: Any) -> Iterator[str]:
    if isinstance(decoder, dict):
        yield decoder.get("type", "")
        for part in decoder.get("decoders", ()):
            yield from _types(part)


def _byte_characters() -> Iterable[tuple[str, bytes]]:
    """Byte-level BPE writes printable Latin-1 as itself and the other bytes, in order, as characters from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    for byte in range(256):
        yield chr(byte if byte in printable else 0x100 + others.index(byte)), bytes([byte])


_BYTES = dict(_byte_characters())
