"""Write the trained model as a Hugging Face checkpoint folder."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from demo.training.model import Llama
from demo.training.vocabulary import END_OF_TEXT, SPECIAL

END_OF_TEXT_ID, END_OF_TURN_ID = SPECIAL.index(END_OF_TEXT), len(SPECIAL) - 1


def save_checkpoint(model: Llama, tokenizer_folder: Path, folder: Path) -> None:
    """Write config.json, model.safetensors in bf16, generation_config.json and the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: parameter.detach().to("cpu", torch.bfloat16).contiguous()
        for name, parameter in model.named_parameters()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ends = [END_OF_TURN_ID, END_OF_TEXT_ID]
    identity = {"bos_token_id": END_OF_TEXT_ID, "eos_token_id": ends, "pad_token_id": END_OF_TEXT_ID}
    shape = model.shape.as_config()
    rope = {"rope_theta": shape["rope_theta"], "rope_type": "default"}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        **shape,
        "rope_parameters": rope,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        **identity,
    }
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {**identity, "do_sample": False})
    (folder / "model.safetensors").chmod(0o644)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer_folder / name, folder / name)


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
