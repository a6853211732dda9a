"""GGUF files on disk: metadata and the positions of tensors. Needs neither numpy nor torch.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ModelInvalid, ModelNotFound, ModelUnsupported

BLOCK_SIZES: dict[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
}
"""The supported types: values per block, and the block's bytes."""

# By number; a dash is a number that the format no longer uses.
_TYPES = (
    "F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL "
    "IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4 NVFP4"
)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<shards>\d{5})\.gguf")
# Far beyond any model, and small enough that a lying header costs no memory.
_ENTRIES_MAX = 2**20
_DIMENSIONS_MAX = 4
_FLOATS_BYTES_MAX = 2**16


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in a file. `shape` is outermost first, as in torch; `offset` counts from the file's beginning."""

    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Gguf:
    """A model's metadata and tensors, from all of its files in `folder`."""

    folder: Path
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]


def model_stem(path: Path) -> str:
    """Return a GGUF's name without the ending and without the numbering of split files."""
    shard = _SHARD.fullmatch(path.name)
    return shard["stem"] if shard else path.name.removesuffix(".gguf")


def shards_of(path: Path) -> list[Path]:
    """Return all files of the model that `path` belongs to, in order.

    Raise ModelNotFound, naming a missing one.
    """
    shard = _SHARD.fullmatch(path.name)
    if shard is None:
        paths = [path]
    else:
        count = int(shard["shards"])
        paths = [path.with_name(f"{shard['stem']}-{at:05}-of-{count:05}.gguf") for at in range(1, count + 1)]
    for file in paths:
        if not file.is_file():
            raise ModelNotFound(f"{file} is missing; the model has {len(paths)} files")
    return paths


def read_gguf(paths: list[Path]) -> Gguf:
    """Read the headers of a model's files. Raise ModelInvalid or ModelUnsupported, naming what is wrong."""
    metadata: dict[str, Any] = {}
    tensors: dict[str, GgufTensor] = {}
    for path in paths:
        own, file_tensors = _read_file(path)
        metadata = own | metadata  # Only the first of several files describes the model.
        for tensor in file_tensors:
            if tensor.name in tensors:
                raise ModelInvalid(f"{tensor.name} is both in {tensors[tensor.name].file} and in {path.name}")
            tensors[tensor.name] = tensor
    return Gguf(paths[0].parent, metadata, tuple(tensors.values()))


def read_floats(gguf: Gguf, tensor: GgufTensor) -> tuple[float, ...]:
    """Return the values of a small F32 tensor, in order and in the unit that the model uses.

    Raise ModelUnsupported for another type.
    """
    if tensor.dtype != "F32" or tensor.size_bytes > _FLOATS_BYTES_MAX:
        raise ModelUnsupported(f"{tensor.file}: {tensor.name} must be a small F32 tensor, not {tensor.dtype}")
    with (gguf.folder / tensor.file).open("rb") as file:
        file.seek(tensor.offset)
        return struct.unpack(f"<{tensor.size_bytes // 4}f", file.read(tensor.size_bytes))


def _read_file(path: Path) -> tuple[dict[str, Any], list[GgufTensor]]:
    size_bytes = path.stat().st_size
    if size_bytes < 24:
        raise ModelInvalid(f"{path} is truncated: {size_bytes} bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        cursor = _Cursor(path, content)
        try:
            return _read_header(path, cursor, size_bytes)
        except struct.error:
            raise ModelInvalid(f"{path} is truncated within its header") from None


def _read_header(path: Path, cursor: "_Cursor", file_bytes: int) -> tuple[dict[str, Any], list[GgufTensor]]:
    if cursor.take(4) != b"GGUF":
        raise ModelInvalid(f"{path} is not a GGUF file")
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ModelUnsupported(f"{path}: GGUF version {version} is not supported, only 2 and 3, little-endian")
    tensor_count, pair_count = cursor.count("Q"), cursor.count("Q")
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        name = cursor.string()
        metadata[name] = cursor.value(cursor.scalar("I"))
    places = [(cursor.string(), *cursor.tensor_info()) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 2**20:
        raise ModelInvalid(f"{path}: general.alignment is {alignment!r}")
    data_begin = -(-cursor.at // alignment) * alignment
    return metadata, [
        _tensor(path, name, shape, kind, data_begin + offset, file_bytes) for name, shape, kind, offset in places
    ]


def _tensor(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int, file_bytes: int) -> GgufTensor:
    dtype = dict(enumerate(_TYPES.split())).get(kind, f"number {kind}")
    if dtype not in BLOCK_SIZES:
        raise ModelUnsupported(
            f"{path}: {name} has GGUF type {dtype}, which is not supported; supported: {', '.join(BLOCK_SIZES)}"
        )
    values, block_bytes = BLOCK_SIZES[dtype]
    if not shape or shape[-1] % values or min(shape) < 1:
        raise ModelInvalid(f"{path}: {name} of shape {list(shape)} cannot be {dtype}")
    size_bytes = math.prod(shape) // values * block_bytes
    if offset + size_bytes > file_bytes:
        raise ModelInvalid(f"{path} is truncated: {name} ends at byte {offset + size_bytes} of {file_bytes}")
    return GgufTensor(path.name, name, dtype, shape, offset, size_bytes)


class _Cursor:
    """Reads a header from front to back. A read beyond the file raises struct.error or ModelInvalid."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.at = 0
        self._path = path
        self._content = content

    def take(self, size_bytes: int) -> bytes:
        if size_bytes > len(self._content) - self.at:
            raise ModelInvalid(f"{self._path} is truncated within its header")
        taken = self._content[self.at : self.at + size_bytes]
        self.at += size_bytes
        return taken

    def scalar(self, form: str) -> Any:
        form = f"<{form}"
        value = struct.unpack_from(form, self._content, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def count(self, form: str) -> int:
        count = int(self.scalar(form))
        if count > _ENTRIES_MAX:
            raise ModelInvalid(f"{self._path} claims {count} entries; it is damaged")
        return count

    def string(self) -> str:
        return self.take(int(self.scalar("Q"))).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(self._form(kind))
        kind, count = self.scalar("I"), self.count("Q")
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        form = f"<{count}{self._form(kind)}"
        return list(struct.unpack(form, self.take(struct.calcsize(form))))

    def tensor_info(self) -> tuple[tuple[int, ...], int, int]:
        """Return the shape, type number and offset of a tensor."""
        dimensions = int(self.scalar("I"))
        if dimensions > _DIMENSIONS_MAX:
            raise ModelInvalid(f"{self._path} claims a tensor of {dimensions} dimensions; it is damaged")
        innermost_first = tuple(int(self.scalar("Q")) for _ in range(dimensions))
        return innermost_first[::-1], int(self.scalar("I")), int(self.scalar("Q"))

    def _form(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise ModelInvalid(f"{self._path} has metadata of unknown type {kind}; it is damaged")
        return _SCALARS[kind]
