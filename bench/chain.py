"""Build a Llama of 0.49 B parameters with known greedy answers: each word always has the same successor.

Its shapes and its work are those of any model of that size. The output head's row for a word's successor is the
word's own embedding. The random layers between change it too little to change the winner. So every engine's text
can be checked, and prompts can be made whose answers repeat them or not. The words lie on one cycle, longer than
any answer here.
"""

import json
import random
import re
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from bench.models import DEMO_MODEL

NAME = "half-billion"
VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, CONTEXT = 32000, 1024, 4864, 24, 16, 4, 4096
HEAD_DIM = HIDDEN // HEADS

_WORD = re.compile("Ġ[a-z]+")


class Chain:
    """The words in their order. The demo model's tokenizer has each as one token, with the space before it."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))

    @cached_property
    def cycle(self) -> list[int]:
        """Token ids. The successor of each is the next one; the first follows the last."""
        vocabulary = self._tokenizer.get_vocab()
        words = sorted(token_id for token, token_id in vocabulary.items() if _WORD.fullmatch(token))
        random.Random(1).shuffle(words)
        return words

    def answer(self, at: int, tokens: int) -> list[int]:
        """Return the words after this place in the cycle."""
        return [self.cycle[(at + step) % len(self.cycle)] for step in range(1, tokens + 1)]

    def text(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids))

    def prompt(self, tokens: int, seed: str) -> tuple[list[int], int]:
        """Return random words, and the place of the last one in the cycle.

        They contain no sequence of the answer.
        """
        source = random.Random(seed)
        places = [source.randrange(len(self.cycle)) for _ in range(tokens)]
        return [self.cycle[place] for place in places], places[-1]

    def grounded_prompt(self, tokens: int, answer: int, phrase: int, seed: str) -> tuple[list[int], int]:
        """Return a prompt that contains the answer in phrases of `phrase` words, in random order among others.

        A draft from the prompt is right up to the phrase's end and wrong there, as when an answer quotes.
        """
        ids, at = self.prompt(tokens, seed)
        quoted = self.answer(at, answer)
        phrases = [quoted[first : first + phrase] for first in range(0, answer, phrase)]
        random.Random(seed).shuffle(phrases)
        room = (tokens - 1) // len(phrases)
        if room < phrase:
            raise ValueError(f"{answer} words in phrases of {phrase} do not fit into {tokens}")
        for number, words in enumerate(phrases):
            ids[number * room : number * room + len(words)] = words
        return ids, at


def make_chain(folder: Path) -> Path:
    """Write the checkpoint in bf16 as folder/half-billion, unless it already exists."""
    made = folder / NAME
    if (made / "model.safetensors").exists():
        return made
    made.mkdir(parents=True, exist_ok=True)
    for file in DEMO_MODEL.glob("*.json"):
        shutil.copy(file, made)
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    config |= {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
    }
    (made / "config.json").write_text(json.dumps(config))
    unfinished = made / "model.unfinished"
    save_file(_weights(Chain().cycle), unfinished)
    unfinished.rename(made / "model.safetensors")
    return made


def _weights(cycle: list[int]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def matrix(rows: int, columns: int, scale: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator).mul_(scale).bfloat16()

    # Both branches of all layers together add about the embedding's magnitude to a row.
    fan, deep = HIDDEN**-0.5, (2 * LAYERS) ** -0.5
    embedding = matrix(VOCABULARY, HIDDEN, 0.5)
    head = torch.zeros_like(embedding)
    successors = cycle[1:] + cycle[:1]
    head[successors] = embedding[cycle] * (2 * fan / 0.5)
    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": ones.clone(),
        "lm_head.weight": head,
    }
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN, fan),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN, fan),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN, fan),
        "self_attn.o_proj": (HIDDEN, HIDDEN, fan * deep),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN, fan),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN, fan),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE, INTERMEDIATE**-0.5 * deep),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {f"{prefix}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        weights[f"{prefix}input_layernorm.weight"] = ones.clone()
        weights[f"{prefix}post_attention_layernorm.weight"] = ones.clone()
    return weights


def make_gguf(checkpoint: Path) -> Path:
    """Write the same weights in Q8_0 for llama.cpp, beside the checkpoint's folder, unless they already exist."""
    made = checkpoint.with_name(f"{checkpoint.name}-q8_0.gguf")
    if made.exists():
        return made
    # Only measurements of llama.cpp need the package.
    import gguf

    unfinished = made.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, "llama")
    _describe(writer)
    _add_tokenizer(writer, json.loads((checkpoint / "tokenizer.json").read_text()))
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        values = _pairwise(name, tensor.float()).contiguous().numpy()
        if values.ndim == 1:
            writer.add_tensor(_gguf_name(name), values)
        else:
            writer.add_tensor(_gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(made)
    return made


def _describe(writer: Any) -> None:
    writer.add_name(NAME)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(7)


def _add_tokenizer(writer: Any, tokenizer: dict[str, Any]) -> None:
    """Add the demo model's tokens. The rest of the vocabulary has names that no text contains."""
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    by_id = {token_id: token for token, token_id in model["vocab"].items()}
    by_id |= {entry["id"]: entry["content"] for entry in added}
    special = {entry["id"] for entry in added if entry["special"]}
    normal, control = 1, 3
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([by_id.get(token_id, f"<unused{token_id}>") for token_id in range(VOCABULARY)])
    writer.add_token_types([control if token_id in special else normal for token_id in range(VOCABULARY)])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_GGUF_NAMES[part]}.weight"
    return f"{_GGUF_NAMES[stem]}.weight"


def _pairwise(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Reorder rows: Hugging Face rotates a head's halves against each other, GGUF's llama neighbouring rows."""
    heads = HEADS if ".q_proj" in name else KV_HEADS if ".k_proj" in name else 0
    if not heads:
        return tensor
    rows, columns = tensor.shape
    return tensor.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)
