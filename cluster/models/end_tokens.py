"""The tokens that end an answer, which several files of a model name."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from cluster.errors import ModelInvalid
from cluster.models.chat_template import read_json, special_tokens


class _Added(msgspec.Struct, frozen=True):
    id: int
    content: str


class _Tokenizer(msgspec.Struct, frozen=True):
    """The only part of a tokenizer.json that is read here; its vocabulary is skipped."""

    added_tokens: list[_Added] = []


def find_end_tokens(folder: Path, token_id: Callable[[str], int | None]) -> frozenset[int]:
    """Return the end tokens. `token_id` knows at least the tokenizer's special tokens. Raise ModelInvalid."""
    end_ids: set[int] = set()
    for file in ("generation_config.json", "config.json"):
        ids = read_json(folder / file).get("eos_token_id")
        end_ids.update(ids if isinstance(ids, list) else [ids] if isinstance(ids, int) else [])
    named = special_tokens(read_json(folder / "tokenizer_config.json")).get("eos_token")
    if named and (end := token_id(named)) is not None:
        end_ids.add(end)
    return frozenset(end_ids)


def read_end_tokens(folder: Path) -> frozenset[int]:
    """Return the end tokens without the tokenizer, which takes long to read. Raise ModelInvalid."""
    file = folder / "tokenizer.json"
    try:
        tokenizer = msgspec.json.decode(file.read_bytes(), type=_Tokenizer)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise ModelInvalid(f"{file}: {error}") from None
    return find_end_tokens(folder, {added.content: added.id for added in tokenizer.added_tokens}.get)
