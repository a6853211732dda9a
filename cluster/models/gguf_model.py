"""A GGUF model under Hugging Face's names: its tensors, and a folder like any checkpoint's."""

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ModelInvalid, ModelNotFound, ModelUnsupported
from cluster.models.gguf_config import ROPE_FACTORS, read_config
from cluster.models.gguf_file import BLOCK_SIZES, GgufTensor, read_gguf, shards_of
from cluster.models.gguf_tokenizer import tokenizer_files

# Part of the unpacked folder's name: files of an older reader are written again.
_READER_VERSION = 1
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Experts: the router, then the names of the slices of each stacked tensor, one for each expert.
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_QWEN_MOE = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """A tensor under its Hugging Face name; `rope_heads` as in manifest.TensorEntry."""

    name: str
    place: GgufTensor
    rope_heads: int


def find_gguf(folder: Path) -> Path | None:
    """Return the only model of a folder with GGUF files and no safetensors.

    Raise ModelInvalid if there are several.
    """
    files = sorted(folder.glob("*.gguf"))
    if not files or any(folder.glob("*.safetensors")):
        return None
    if set(shards_of(files[0])) != set(files):
        raise ModelInvalid(f"{folder} holds several GGUF models. Name one file, for example {files[0]}.")
    return files[0]


def unpack(path: Path, cache: Path) -> Path:
    """Return a folder with config.json, tokenizer files and links to the GGUF's files, and create it if needed.

    Raise ModelNotFound, ModelInvalid or ModelUnsupported, naming what is wrong.
    """
    paths = shards_of(path)
    stamps = [(str(shard.resolve()), shard.stat().st_size, shard.stat().st_mtime_ns) for shard in paths]
    key = hashlib.sha256(repr((_READER_VERSION, stamps)).encode()).hexdigest()
    folder = cache / f"gguf-{key[:32]}"
    if folder.is_dir():
        return folder
    gguf = read_gguf(paths)
    config = read_config(gguf)
    fresh = folder.with_suffix(f".{os.getpid()}")
    fresh.mkdir(parents=True, exist_ok=True)
    for name, content in {"config.json": config, **tokenizer_files(gguf.metadata, config["vocab_size"])}.items():
        (fresh / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    for shard in paths:
        _link(fresh / shard.name, shard.resolve())
    try:
        fresh.replace(folder)
    except OSError:
        if not folder.is_dir():  # Otherwise another process has created the same folder first.
            raise
        shutil.rmtree(fresh)
    return folder


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(target)
    except OSError:  # On Windows only administrators may create these.
        try:
            link.hardlink_to(target)
        except OSError as error:
            raise ModelNotFound(
                f"{target} cannot be linked into {link.parent} ({error.strerror}). Put both on one disk."
            ) from None


def mapped_tensors(folder: Path) -> list[MappedTensor]:
    """Return the tensors of an unpacked folder, experts one by one. Raise ModelUnsupported for an unknown one."""
    gguf = read_gguf(shards_of(next(iter(sorted(folder.glob("*.gguf"))))))
    config = read_config(gguf)
    return [mapped for tensor in gguf.tensors for mapped in _map(tensor, config)]


def _map(tensor: GgufTensor, config: dict[str, Any]) -> Iterator[MappedTensor]:
    if tensor.name == ROPE_FACTORS:
        return
    outer, _, kind = tensor.name.rpartition(".")
    if outer in _OUTER:
        yield MappedTensor(f"{_OUTER[outer]}.{kind}", tensor, 0)
        return
    inner = _LAYER_TENSOR.fullmatch(tensor.name)
    names = _INNER | {"mixtral": _MIXTRAL, "qwen3_moe": _QWEN_MOE}.get(config["model_type"], {})
    if inner is None or inner[2] not in names:
        raise ModelUnsupported(f"{tensor.file}: the tensor {tensor.name} has no place in {config['model_type']}")
    name = f"model.layers.{inner[1]}.{names[inner[2]]}.{inner[3]}"
    if "{}" in name:
        yield from (MappedTensor(name.format(at), part, 0) for at, part in enumerate(_slices(tensor)))
    else:
        yield MappedTensor(name, tensor, _rope_heads(inner[2], config))


def _slices(tensor: GgufTensor) -> Iterator[GgufTensor]:
    values, block_bytes = BLOCK_SIZES[tensor.dtype]
    shape = tensor.shape[1:]
    size_bytes = math.prod(shape) // values * block_bytes
    for at in range(tensor.shape[0]):
        offset = tensor.offset + at * size_bytes
        yield GgufTensor(tensor.file, tensor.name, tensor.dtype, shape, offset, size_bytes)


def _rope_heads(part: str, config: dict[str, Any]) -> int:
    # llama.cpp's "llama" rotates neighbouring rows, and its converter reordered them for that; others keep halves.
    if config["model_type"] not in ("llama", "mixtral"):
        return 0
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    return int(heads.get(part, 0))
