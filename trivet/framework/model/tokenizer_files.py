"""What a model says about text, as published: tokenizer, special tokens, chat template, generation defaults.

Checkpoints produce it, packages keep it; nothing here interprets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivet.base.errors import CheckpointError
from trivet.framework.model.json_file import read_json, write_json

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class TokenizerFiles:
    """The files, read; nothing of them interpreted."""

    tokenizer: bytes  # tokenizer.json
    tokenizer_config: Mapping[str, Any]  # without its chat template
    chat_template: str | None  # Jinja source
    generation_config: Mapping[str, Any]

    def special_token(self, key: str) -> str | None:
        """The text of a token that tokenizer_config names, such as `bos_token`."""
        token = self.tokenizer_config.get(key)
        if isinstance(token, dict):
            token = token.get("content")
        return token if isinstance(token, str) else None


def read_tokenizer_files(folder: Path, config: Mapping[str, Any]) -> TokenizerFiles:
    """The files in `folder`; the ids in the model's `config` stand in where there is no generation_config.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing: the tokenizer is read in that form only",
            "write it once with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
        )
    try:
        tokenizer = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} is not readable: {error}", "copy the file again") from None
    tokenizer_config = _optional_json(folder / "tokenizer_config.json") or {}
    generation_config = _optional_json(folder / "generation_config.json")
    if generation_config is None:
        generation_config = {key: config[key] for key in _TOKEN_IDS if config.get(key) is not None}
    return TokenizerFiles(
        tokenizer=tokenizer,
        chat_template=_chat_template(folder, tokenizer_config),
        tokenizer_config={key: value for key, value in tokenizer_config.items() if key != "chat_template"},
        generation_config=generation_config,
    )


def write_tokenizer_files(files: TokenizerFiles, folder: Path) -> None:
    """Such that `read_tokenizer_files` gives `files` back."""
    (folder / "tokenizer.json").write_bytes(files.tokenizer)
    write_json(folder / "tokenizer_config.json", files.tokenizer_config)
    write_json(folder / "generation_config.json", files.generation_config)
    if files.chat_template is not None:
        # Written as bytes: translating its line ends would change the prompt.
        (folder / "chat_template.jinja").write_bytes(files.chat_template.encode())


def _optional_json(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.is_file() else None


def _chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_bytes().decode()
        except ValueError as error:
            raise CheckpointError(f"{path} is not readable: {error}", "copy the file again") from None
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several by name: {"name": "default", "template": …}
        named = (entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default")
        template = next((entry.get("template") for entry in named), None)
    return template if isinstance(template, str) else None
