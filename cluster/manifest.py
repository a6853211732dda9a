"""What a model is, byte for byte: files and tensors with their SHA-256, and one digest over them all."""

import hashlib
import json
import mmap
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from cluster.errors import ModelInvalid, ModelNotFound

HEADER_BYTES_MAX = 100 * 2**20
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
)
VALUE_BYTES = {"F32": 4, "BF16": 2, "F16": 2}

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


class FileEntry(Struct, frozen=True, array_like=True):
    size_bytes: int
    sha256: str


class TensorEntry(Struct, frozen=True, array_like=True):
    """Where a tensor's raw bytes lie; `offset` counts from the file's beginning."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True, dict=True):
    name: str
    config: dict[str, Any]
    files: dict[str, FileEntry]
    tensors: dict[str, TensorEntry]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything but the model's name and the places of its bytes."""
        content = {
            "files": {name: entry.sha256 for name, entry in self.files.items()},
            "tensors": {name: (t.dtype, t.shape, t.sha256) for name, t in self.tensors.items()},
        }
        return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def read_manifest(folder: Path, name: str, progress: Progress | None = None) -> Manifest:
    """Hash a checkpoint folder (config.json, tokenizer.json, *.safetensors).

    Reads every byte once. Raises ModelNotFound when files are missing, ModelInvalid when they are damaged.
    """
    config = read_config(folder)
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise ModelNotFound(f"{folder} holds no .safetensors file")
    if not (folder / "tokenizer.json").is_file():
        raise ModelNotFound(f"{folder} holds no tokenizer.json")
    total_bytes = sum(shard.stat().st_size for shard in shards)
    tensors: dict[str, TensorEntry] = {}
    done_bytes = 0
    for shard in shards:
        for tensor_name, entry in _hash_shard(shard):
            if tensor_name in tensors:
                raise ModelInvalid(f"{tensor_name} stands in {tensors[tensor_name].file} and in {shard.name}")
            tensors[tensor_name] = entry
            done_bytes += entry.size_bytes
            if progress:
                progress(done_bytes, total_bytes)
    files = {file: hash_file(folder / file) for file in SMALL_FILES if (folder / file).is_file()}
    return Manifest(name=name, config=config, files=files, tensors=tensors)


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed config.json. Raises ModelNotFound, ModelInvalid."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelNotFound(f"{folder} holds no config.json")
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelInvalid(f"{path}: {error}") from None
    if not isinstance(config, dict):
        raise ModelInvalid(f"{path}: must hold a JSON object")
    return config


def hash_file(path: Path) -> FileEntry:
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
                f"{path} is truncated or no safetensors file: its header claims {header_bytes} bytes"
            )
        try:
            header = json.loads(content[8 : 8 + header_bytes])
        except ValueError as error:
            raise ModelInvalid(f"{path}: header cannot be read: {error}") from None
        if not isinstance(header, dict):
            raise ModelInvalid(f"{path}: header must be a JSON object")
        header.pop("__metadata__", None)
        entries = [
            (name, _read_entry(path, name, about, 8 + header_bytes, size_bytes)) for name, about in header.items()
        ]
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
    except (KeyError, TypeError, ValueError):
        raise ModelInvalid(f"{path}: the entry of {name} cannot be read") from None
    if dtype not in VALUE_BYTES:
        raise ModelInvalid(f"{path}: {name} has dtype {dtype}; supported: {', '.join(VALUE_BYTES)}")
    if data_begin + end > file_bytes:
        raise ModelInvalid(f"{path} is truncated: {name} ends at byte {data_begin + end} of {file_bytes}")
    size_bytes = VALUE_BYTES[dtype]
    for extent in shape:
        size_bytes *= extent
    if begin < 0 or end - begin != size_bytes:
        raise ModelInvalid(f"{path}: {name} of shape {list(shape)} needs {size_bytes} bytes, not {end - begin}")
    return TensorEntry(path.name, dtype, shape, data_begin + begin, size_bytes, "")


def _hash_range(content: memoryview, offset: int, size_bytes: int) -> str:
    with content[offset : offset + size_bytes] as part:
        return hashlib.sha256(part).hexdigest()
