"""Embedding models: the reference's vectors in any batch, shortened and pooled as the model's files say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.compute.embedder import CausalEncoder, Embedder
from cluster.errors import ContextLengthExceeded, ModelUnsupported, RequestInvalid
from cluster.models.embedding_model import read_embedding_model
from cluster.plans.plan import BLOCK_TOKENS
from tests.embedding_models import VOCABULARY, bert, distilbert, expected, put, qwen3, roberta, save

CPU = torch.device("cpu")
TEXTS = [[2, 17, 30, 3], [2, 4, 3], [2, *range(10, 60), 3], [2, 99, 3], [2, *range(100, 104), 3]]


def load(folder: Path, device: torch.device = CPU) -> Embedder:
    model = read_embedding_model(str(folder), folder / "cache")
    return Embedder.open(str(model.folder), model.manifest, model.recipe, device)


@pytest.mark.parametrize(
    ("make", "pooling", "normalize"),
    [
        (bert, "mean_tokens", True),
        (bert, "cls_token", False),
        (roberta, "cls_token", True),
        (distilbert, "mean_tokens", False),
        (qwen3, "lasttoken", True),
    ],
)
def test_vectors_equal_the_references(
    make: Callable[[], Any],
    pooling: str,
    normalize: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
) -> None:
    model = save(tmp_path, make(), pooling, normalize=normalize)
    embedder = load(tmp_path, device)
    wanted = expected(model, pooling, TEXTS, normalize=normalize)
    torch.testing.assert_close(embedder.embed(TEXTS), wanted, rtol=1e-4, atol=1e-5)
    assert embedder.dimensions == wanted.shape[1]
    # In passes of a few rows, which regroup texts by length, and twice, so that slots are reused.
    monkeypatch.setattr("cluster.compute.embedder._ROWS_MAX", 8)
    torch.testing.assert_close(embedder.embed(TEXTS), wanted, rtol=1e-4, atol=1e-5)


def test_many_short_texts_take_little_memory(tmp_path: Path, device: torch.device) -> None:
    """A pass has few texts, each with only the memory that it needs, and no output head is loaded."""
    model = save(tmp_path, qwen3(), "lasttoken", normalize=True)
    embedder = load(tmp_path, device)
    encoder = embedder._encoder
    assert isinstance(encoder, CausalEncoder)
    assert encoder._decoder._weights.head is None
    most_bytes = 0
    texts, forward = [[2, at % 200, 3] for at in range(300)], encoder._decoder.forward

    def watching(rows: torch.Tensor, batch: Any) -> torch.Tensor:
        nonlocal most_bytes
        held = [layer for slots in (encoder._cache._keys, encoder._cache._values) for layer in slots.values()]
        most_bytes = max(most_bytes, sum(tensor.nbytes for layer in held for tensor in layer))
        return forward(rows, batch)

    encoder._decoder.forward = watching  # type: ignore[method-assign]
    torch.testing.assert_close(
        embedder.embed(texts), expected(model, "lasttoken", texts, normalize=True), rtol=1e-4, atol=1e-5
    )
    token_bytes = 2 * 2 * 2 * 16 * 4
    assert 0 < most_bytes <= 64 * BLOCK_TOKENS * token_bytes


def test_longer_texts_than_the_model_reads_are_refused(tmp_path: Path) -> None:
    """Vectors of truncated texts would not represent the removed part."""
    save(tmp_path, bert(), "mean_tokens", normalize=False, tokens_max=8)
    embedder = load(tmp_path)
    assert embedder.encode(["w10 w11", " ".join(f"w{at}" for at in range(10, 18))]) == [
        [2, 10, 11, 3],
        [2, *range(10, 18), 3],
    ]
    assert embedder.embed([[2, *range(10, 16), 3]]).shape == (1, 64)
    with pytest.raises(ContextLengthExceeded, match=r"8 tokens, input\[1\] has 9"):
        embedder.embed([[2, 3], [2, *range(10, 17), 3]])


def test_models_that_cannot_embed_are_named(tmp_path: Path) -> None:
    save(tmp_path, bert(), "mean_tokens", normalize=False)
    embedder = load(tmp_path)
    for bad in ([], [VOCABULARY], [-1]):
        with pytest.raises(RequestInvalid):
            embedder.embed([[2, 3], bad])
    put(tmp_path / "1_Pooling" / "config.json", {"pooling_mode_max_tokens": True})
    with pytest.raises(ModelUnsupported, match="pooling_mode_max_tokens"):
        load(tmp_path)
    put(tmp_path / "modules.json", [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}])
    with pytest.raises(ModelUnsupported, match="'Dense'"):
        load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    put(tmp_path / "config.json", config | {"position_embedding_type": "relative_key"})
    (tmp_path / "modules.json").unlink()
    with pytest.raises(ModelUnsupported, match="relative_key"):
        load(tmp_path)


def test_a_chat_model_is_no_embedding_model(tmp_path: Path) -> None:
    save(tmp_path, qwen3(), "lasttoken", normalize=True)
    (tmp_path / "modules.json").unlink()
    with pytest.raises(ModelUnsupported, match=r"no modules\.json"):
        load(tmp_path)
