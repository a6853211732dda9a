"""An embedding model on the controller's machine: its hashed files, and how its rows become vectors."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.embedding import CONTEXT_TOKENS_MAX
from cluster.errors import ModelUnsupported, RequestInvalid
from cluster.models.bert_family import BERT_FAMILIES, refuse_variants
from cluster.models.manifest import Manifest, Progress, read_config
from cluster.models.model_card import read_card
from cluster.models.pooling import Recipe, read_recipe
from cluster.models.store import find_model, load_manifest, model_name

# Memory for torch and the program itself, and for the rows of one pass.
_PROCESS_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """The files of an embedding model, and the recipe for its vectors."""

    name: str
    folder: Path
    manifest: Manifest
    recipe: Recipe

    @property
    def needed_bytes(self) -> int:
        """The bytes of memory for the model in fp32, for its process and for the longest text."""
        values = sum(math.prod(entry.shape) for entry in self.manifest.tensors.values())
        return 4 * values + _PROCESS_BYTES + self._kv_bytes

    @property
    def _kv_bytes(self) -> int:
        if self.manifest.config.get("model_type") in BERT_FAMILIES:
            return 0
        card = read_card(self.manifest.config)
        tokens = min(card.context_tokens, CONTEXT_TOKENS_MAX, self.recipe.tokens_max or CONTEXT_TOKENS_MAX)
        return tokens * sum(card.kv_bytes_per_token("fp32", layer) for layer in range(card.layers))


def read_embedding_model(reference: str, folder: Path, progress: Progress | None = None) -> EmbeddingModel:
    """Find and hash a model, named by a folder or Hugging Face id. `folder` stores pulled models and manifests.

    Raise ModelError, with the reason, if the model cannot embed.
    """
    model_folder = find_model(reference, folder / "models", check_family)
    name, config = model_name(reference), read_config(model_folder)
    check_family(config)
    # Encoders without a pooling setting use the mean of their rows.
    recipe = read_recipe(model_folder, default="mean" if config.get("model_type") in BERT_FAMILIES else None)
    return EmbeddingModel(
        name, model_folder, load_manifest(model_folder, name, folder / "manifests", progress), recipe
    )


def check_family(config: dict[str, Any]) -> None:
    """Raise ModelUnsupported or ModelInvalid if the embedder does not run this family."""
    if config.get("model_type") in BERT_FAMILIES:
        refuse_variants(config)
        return
    for setting, wrong in (("use_bidirectional_attention", True), ("is_causal", False)):
        if config.get(setting) is wrong:
            raise ModelUnsupported(f"config.json: {setting} {wrong}: decoders only run with causal attention")
    if (card := read_card(config)).path != "fast":
        raise ModelUnsupported(f"embedding models of family {card.family!r} are not supported")


def check_dimensions(config: dict[str, Any], hidden: int, requested: int | None) -> int:
    """Return the length of the vectors. Raise RequestInvalid for a length that the model does not support.

    Only some models' vectors can be shortened (Matryoshka), as their config.json says. `is_matryoshka` allows
    every length, `matryoshka_dimensions` the listed ones.
    """
    if requested in (None, hidden):
        return hidden
    assert requested is not None
    listed = config.get("matryoshka_dimensions")
    allowed = [length for length in listed if isinstance(length, int)] if isinstance(listed, list) else []
    if requested in allowed or (not allowed and config.get("is_matryoshka") is True and 0 < requested < hidden):
        return requested
    lengths = ", ".join(map(str, sorted({*allowed, hidden})))
    raise RequestInvalid(f"dimensions: this model supports {lengths}, not {requested}", "dimensions")
