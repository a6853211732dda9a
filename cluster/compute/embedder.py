"""Embedding models on one node: one vector for each text, as the model's sentence-transformers files say."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from cluster.compute import bert
from cluster.compute.decoder import Decoder
from cluster.compute.gguf_blocks import dequantise
from cluster.compute.kv_cache import KvCache
from cluster.compute.weights import load_stage, read_pinned
from cluster.embedding import CONTEXT_TOKENS_MAX, check_tokens
from cluster.models.bert_family import BERT_FAMILIES
from cluster.models.embedding_model import check_family
from cluster.models.manifest import Manifest
from cluster.models.model_card import read_card
from cluster.models.pooling import Recipe
from cluster.models.stage_spec import StageSpec
from cluster.models.store import open_source
from cluster.models.text import read_tokenizer
from cluster.plans.plan import BLOCK_TOKENS

# Rows of one pass: enough to keep matrix units busy, few enough for the rows' own memory to stay small.
_ROWS_MAX = 2048
# Texts of one pass, each of which takes whole blocks of the KV cache.
_TEXTS_MAX = 64


class _Encoder(Protocol):
    hidden: int
    vocabulary: int
    context_tokens: int

    def forward(self, token_ids: Tensor, counts: list[int]) -> Tensor: ...


class Embedder:
    """One embedding model in memory."""

    def __init__(self, encoder: _Encoder, tokenizer: Tokenizer, recipe: Recipe, device: torch.device) -> None:
        self._encoder = encoder
        self._recipe = recipe
        self._device = device
        self.tokens_max = min(recipe.tokens_max or CONTEXT_TOKENS_MAX, encoder.context_tokens, CONTEXT_TOKENS_MAX)
        self._tokenizer = tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    @classmethod
    def open(cls, source: str, manifest: Manifest, recipe: Recipe, device: torch.device) -> "Embedder":
        """Load from a folder or a node's copy of one, in fp32. Raise ModelError and its kinds."""
        check_family(manifest.config)
        encoder: _Encoder
        if manifest.config.get("model_type") in BERT_FAMILIES:
            encoder = _load_bert(source, manifest, device)
        else:
            encoder = CausalEncoder(source, manifest, device, recipe.tokens_max)
        return cls(encoder, read_tokenizer(Path(source)), recipe, device)

    @property
    def dimensions(self) -> int:
        """The length of the model's vectors."""
        return self._encoder.hidden

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, with the model's special tokens."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def check(self, token_ids: list[list[int]]) -> None:
        """Raise ContextLengthExceeded or RequestInvalid if `embed` does not take these tokens."""
        check_tokens(token_ids, self.tokens_max, self._encoder.vocabulary)

    def embed(self, token_ids: list[list[int]]) -> Tensor:
        """Return vectors [texts, dimensions] in fp32 on the CPU, in the given order.

        Raise ContextLengthExceeded or RequestInvalid.
        """
        self.check(token_ids)
        vectors = torch.empty(len(token_ids), self.dimensions)
        with torch.inference_mode():
            for batch in _batches([len(ids) for ids in token_ids]):
                vectors[batch] = self._run([token_ids[at] for at in batch]).float().cpu()
        return self._finish(vectors)

    def truncate(self, vector: Tensor, dimensions: int) -> Tensor:
        """Return the first `dimensions` values of a vector [hidden], normalized again if the recipe normalizes."""
        return vector if dimensions == len(vector) else self._finish(vector[:dimensions])

    def _finish(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1) if self._recipe.normalize else vectors

    def _run(self, texts: list[list[int]]) -> Tensor:
        counts = [len(text) for text in texts]
        packed = torch.tensor([token for text in texts for token in text], device=self._device)
        parts = torch.split(self._encoder.forward(packed, counts), counts)
        match self._recipe.pooling:
            case "cls":
                return torch.stack([part[0] for part in parts])
            case "last":
                return torch.stack([part[-1] for part in parts])
            case "mean":
                return torch.stack([part.float().mean(0) for part in parts])


def _batches(lengths: list[int]) -> list[list[int]]:
    """Return indices of texts to compute together, alike in length.

    A batch has up to _TEXTS_MAX texts and _ROWS_MAX rows, or one longer text.
    """
    batches: list[list[int]] = []
    rows = 0
    for at in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or len(batches[-1]) == _TEXTS_MAX or rows + lengths[at] > _ROWS_MAX:
            batches.append([])
            rows = 0
        batches[-1].append(at)
        rows += lengths[at]
    return batches


def _load_bert(source: str, manifest: Manifest, device: torch.device) -> bert.BertEncoder:
    read = open_source(source)
    anchor = "embeddings.word_embeddings.weight"
    root = next((name.removesuffix(anchor) for name in manifest.tensors if name.endswith(anchor)), "")

    def load(name: str) -> Tensor | None:
        entry = manifest.tensors.get(root + name)
        return None if entry is None else dequantise(entry, read_pinned(name, entry, read)).float().to(device)

    return bert.BertEncoder(manifest.config, load)


class CausalEncoder:
    """A causal decoder of the fast path. The rows behind its final norm are pooled."""

    def __init__(self, source: str, manifest: Manifest, device: torch.device, tokens_max: int) -> None:
        # Such files often have no output head: the embedding takes its place, so that none is needed.
        card = replace(read_card(manifest.config), tied_embeddings=True)
        self.hidden = card.hidden
        self.vocabulary = card.vocabulary
        self.context_tokens = min(tokens_max or card.context_tokens, card.context_tokens, CONTEXT_TOKENS_MAX)
        blocks = -(-max(_ROWS_MAX, self.context_tokens) // BLOCK_TOKENS)
        # One slot per text of a pass, each rounded up to whole blocks.
        spec = StageSpec.whole(
            card.layers,
            precision="fp32",
            context_tokens=self.context_tokens,
            kv_blocks=blocks + _TEXTS_MAX,
            slots=_TEXTS_MAX,
        )
        weights = load_stage(card, manifest, spec, open_source(source), device, with_head=False)
        self._cache = KvCache(
            [card.kv_shape(layer) for layer in range(card.layers)],
            spec.kv_blocks,
            torch.float32,
            device,
            context_tokens=self.context_tokens,
            first_tokens=BLOCK_TOKENS,
        )
        self._decoder = Decoder(card, spec, weights, self._cache, torch.float32, device)
        assert weights.final_norm is not None
        self._final_norm = weights.final_norm

    def forward(self, token_ids: Tensor, counts: list[int]) -> Tensor:
        """Return the last hidden rows [rows, hidden] of packed token ids [rows].

        `counts[i]` of the ids belong to text i.
        """
        slots = list(range(len(counts)))
        try:
            batch = self._decoder.batch(slots, [0] * len(counts), counts)
            return self._final_norm(self._decoder.forward(self._decoder.embed(token_ids), batch))
        finally:
            for slot in slots:
                self._cache.free(slot)
