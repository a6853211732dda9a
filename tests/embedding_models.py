"""Tiny embedding models with random weights in sentence-transformers folders, and the reference's vectors.

The models are imported where they are made: each takes seconds, and all processes read this module.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

VOCABULARY = 300
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def bert() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**SHAPE, intermediate_size=96, max_position_embeddings=64))


def roberta() -> Any:
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(**SHAPE, intermediate_size=96, max_position_embeddings=66, type_vocab_size=1)
    return RobertaModel(config)


def distilbert() -> Any:
    from transformers import DistilBertConfig, DistilBertModel

    return DistilBertModel(
        DistilBertConfig(
            vocab_size=VOCABULARY, dim=64, hidden_dim=96, n_layers=2, n_heads=4, max_position_embeddings=64
        )
    )


def qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3Model

    return Qwen3Model(
        Qwen3Config(**SHAPE, intermediate_size=96, num_key_value_heads=2, head_dim=16, max_position_embeddings=64)
    )


def save(folder: Path, model: Any, pooling: str, *, normalize: bool, tokens_max: int = 64) -> Any:
    """A sentence-transformers folder of the model with every parameter away from its start value."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{at}": at for at in range(VOCABULARY)}, unk_token="w1"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="w2 $A w3", special_tokens=[("w2", 2), ("w3", 3)])
    words.save(str(folder / "tokenizer.json"))
    modules = [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Pooling", "sentence_transformers.models.Pooling"),
    ]
    if normalize:
        modules.append(("2_Normalize", "sentence_transformers.models.Normalize"))
    put(folder / "modules.json", [{"path": path, "type": kind} for path, kind in modules])
    flags = {"cls_token": False, "mean_tokens": False, "lasttoken": False} | {pooling: True}
    put(folder / "1_Pooling" / "config.json", {f"pooling_mode_{name}": on for name, on in flags.items()})
    put(folder / "sentence_bert_config.json", {"max_seq_length": tokens_max})
    return model.eval()


def put(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "cls_token": lambda rows: rows[0],
    "mean_tokens": lambda rows: rows.mean(0),
    "lasttoken": lambda rows: rows[-1],
}


def expected(model: Any, pooling: str, texts: list[list[int]], *, normalize: bool) -> Tensor:
    with torch.inference_mode():
        vectors = torch.stack([POOLS[pooling](model(torch.tensor([text])).last_hidden_state[0]) for text in texts])
    return torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors
