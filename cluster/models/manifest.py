"""A model's identity, byte for byte: files and tensors with their SHA-256, and one digest over them all."""

import hashlib
import json
import mmap
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from cluster.errors import ModelInvalid, ModelNotFound
from cluster.models.gguf_model import mapped_tensors

# Increase it if the same files give another manifest than before. Stored manifests are then made again.
READER_VERSION = 1
HEADER_BYTES_MAX = 100 * 2**20
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
)
VALUE_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I64": 8}

Progress = Callable[[int, int], None]
"""Called with (bytes done, total bytes)."""


class FileEntry(Struct, frozen=True, array_like=True):
    """The size and hash of a small file."""

    size_bytes: int
    sha256: str


class TensorEntry(Struct, frozen=True, array_like=True):
    """The position of a tensor's raw bytes.

    `offset` counts from the file's beginning, `dtype` is the file's own name for the type. With `rope_heads` its
    rows belong to that many heads and rotate with their neighbours, as llama.cpp orders queries and keys of Llama
    models. Otherwise they rotate with the row half a head away.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int
    sha256: str
    rope_heads: int = 0


class Manifest(Struct, frozen=True, kw_only=True, dict=True):
    """The content of a model: its config.json, small files and tensors."""

    name: str
    config: dict[str, Any]
    files: dict[str, FileEntry]
    tensors: dict[str, TensorEntry]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything but the model's name and the positions of its bytes."""
        content = {
            "files": {name: entry.sha256 for name, entry in self.files.items()},
            "tensors": {name: (t.dtype, t.shape, t.sha256, *_order(t)) for name, t in self.tensors.items()},
        }
        return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()

    def has(self, sha256: str) -> bool:
        """Tell whether a tensor or a small file has this digest."""
        return sha256 in self._digests

    @cached_property
    def _digests(self) -> frozenset[str]:
        files = {entry.sha256 for entry in self.files.values()}
        return frozenset(files | {entry.sha256 for entry in self.tensors.values()})


def read_manifest(folder: Path, name: str, progress: Progress | None = None) -> Manifest:
    """Hash a checkpoint folder: config.json, tokenizer.json, *.safetensors (or *.gguf, linked by find_model).

    It reads every byte once. Raise ModelNotFound if files are missing, ModelInvalid if they are damaged.
    """
    config = read_config(folder)
    shards = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.gguf"))
    if not shards:
        raise ModelNotFound(f"{folder} holds no .safetensors file")
    if not (folder / "tokenizer.json").is_file():
        raise ModelNotFound(f"{folder} holds no tokenizer.json")
    total_bytes = sum(shard.stat().st_size for shard in shards)
    tensors: dict[str, TensorEntry] = {}
    done_bytes = 0
    hashed: Iterator[tuple[str, TensorEntry]] = (entry for shard in shards for entry in _hash_shard(shard))
    if shards[0].suffix == ".gguf":
        hashed = _hash_gguf(folder)
    for tensor_name, entry in hashed:
        if tensor_name in tensors:
            raise ModelInvalid(f"{tensor_name} is both in {tensors[tensor_name].file} and in {entry.file}")
        tensors[tensor_name] = entry
        done_bytes += entry.size_bytes
        if progress:
            progress(done_bytes, total_bytes)
    files = {file: hash_file(folder / file) for file in SMALL_FILES if (folder / file).is_file()}
    return Manifest(name=name, config=config, files=files, tensors=tensors)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the parsed config.json. Raise ModelNotFound or ModelInvalid."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelNotFound(f"{folder} holds no config.json")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelInvalid(f"{path}: {error}") from None
    if not isinstance(config, dict):
        raise ModelInvalid(f"{path}: must hold a JSON object")
    return config


def hash_file(path: Path) -> FileEntry:
    """Return the size and SHA-256 of a file. Raise OSError if it cannot be read."""
    content = path.read_bytes()
    return FileEntry(len(content), hashlib.sha256(content).hexdigest())


def _hash_shard(path: Path) -> list[tuple[str, TensorEntry]]:
    size_bytes = path.stat().st_size
    if size_bytes < 8:
        raise ModelInvalid(f"{path} is truncated: {size_bytes} bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        header_bytes = int.from_bytes(content[:8], "little")
        if header_bytes > min(HEADER_BYTES_MAX, size_bytes - 8):
            raise ModelInvalid(
                f"{path} is truncated or not a safetensors file: its header claims {header_bytes} bytes"
            )
        try:
            header = json.loads(content[8 : 8 + header_bytes])
        except (ValueError, RecursionError) as error:
            raise ModelInvalid(f"{path}: header cannot be read: {error}") from None
        if not isinstance(header, dict):
            raise ModelInvalid(f"{path}: header must be a JSON object")
        header.pop("__metadata__", None)
        entries = [
            (name, _read_entry(path, name, about, 8 + header_bytes, size_bytes)) for name, about in header.items()
        ]
        _check_apart(path, entries)
        with memoryview(content) as view:
            return [
                (
                    name,
                    msgspec.structs.replace(entry, sha256=_hash_range(view, entry.offset, entry.size_bytes)),
                )
                for name, entry in entries
            ]


def _read_entry(path: Path, name: str, about: dict[str, Any], data_begin: int, file_bytes: int) -> TensorEntry:
    try:
        dtype, shape = str(about["dtype"]), tuple(int(n) for n in about["shape"])
        begin, end = (int(n) for n in about["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ModelInvalid(f"{path}: the entry of {name} cannot be read") from None
    if dtype not in VALUE_BYTES:
        raise ModelInvalid(f"{path}: {name} has dtype {dtype}; supported: {', '.join(VALUE_BYTES)}")
    if min(shape, default=0) < 0:
        raise ModelInvalid(f"{path}: {name} has a negative extent: {list(shape)}")
    if data_begin + end > file_bytes:
        raise ModelInvalid(f"{path} is truncated: {name} ends at byte {data_begin + end} of {file_bytes}")
    size_bytes = VALUE_BYTES[dtype]
    for extent in shape:
        size_bytes *= extent
    if begin < 0 or end - begin != size_bytes:
        raise ModelInvalid(f"{path}: {name} of shape {list(shape)} needs {size_bytes} bytes, not {end - begin}")
    return TensorEntry(path.name, dtype, shape, data_begin + begin, size_bytes, "")


def _check_apart(path: Path, entries: list[tuple[str, TensorEntry]]) -> None:
    """Raise ModelInvalid if two tensors share bytes: otherwise a small file could claim any number of weights."""
    placed = sorted(entries, key=lambda entry: (entry[1].offset, entry[1].size_bytes))
    for (name, entry), (following, after) in pairwise(placed):
        if after.offset < entry.offset + entry.size_bytes:
            raise ModelInvalid(f"{path}: {name} and {following} overlap")


def _hash_gguf(folder: Path) -> Iterator[tuple[str, TensorEntry]]:
    for mapped in mapped_tensors(folder):
        part = mapped.place
        with (
            (folder / part.file).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            sha256 = _hash_range(view, part.offset, part.size_bytes)
        entry = TensorEntry(part.file, part.dtype, part.shape, part.offset, part.size_bytes, sha256)
        yield mapped.name, msgspec.structs.replace(entry, rope_heads=mapped.rope_heads)


def _order(entry: TensorEntry) -> tuple[int, ...]:
    return (entry.rope_heads,) if entry.rope_heads else ()


def _hash_range(content: memoryview, offset: int, size_bytes: int) -> str:
    with content[offset : offset + size_bytes] as part:
        return hashlib.sha256(part).hexdigest()
