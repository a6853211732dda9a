"""Build a random Llama of about 100 M parameters, for speed alone: its text is noise."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

DEMO_MODEL = Path(__file__).parents[1] / "demo" / "model"

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, CONTEXT = 896, 2432, 12, 14, 2, 1024


def make_random(folder: Path, context_tokens: int = CONTEXT) -> Path:
    """Write the checkpoint with the demo model's tokenizer. The seed is fixed."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in DEMO_MODEL.glob("*.json"):
        shutil.copy(file, folder)
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    head_dim = HIDDEN // HEADS
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head_dim,
        "max_position_embeddings": context_tokens,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(int(config["vocab_size"]), head_dim), folder / "model.safetensors")
    return folder


def _weights(vocabulary: int, head_dim: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator)
        return values.mul_(columns**-0.5).bfloat16()

    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    weights = {"model.embed_tokens.weight": matrix(vocabulary, HIDDEN), "model.norm.weight": ones.clone()}
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * head_dim, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * head_dim, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {f"{prefix}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        weights[f"{prefix}input_layernorm.weight"] = ones.clone()
        weights[f"{prefix}post_attention_layernorm.weight"] = ones.clone()
    return weights
