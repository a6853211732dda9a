"""Measure what the demo model loses in each precision, through the real decoder, on texts outside its training.

The corpus cannot be rebuilt offline, but its own generators run. They make documents from another seed, and only
those are used that the training's rule held out (one in 80, by the text's hash). Perplexity counts what the
assistant says in dialogue, and every token of prose and of LICENSE, a kind of text that the corpus does not have.
Agreement is the share of fp32's greedy tokens that the precision would also choose, given the same tokens before.
"""

import argparse
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from bench.models import DEMO_MODEL
from cluster.compute.stage_model import StageModel, load_stage_model
from cluster.models.manifest import Manifest, read_manifest
from cluster.models.model_card import PRECISIONS, ModelCard, Precision, read_card
from cluster.models.stage_spec import CHUNK_TOKENS, StageSpec
from cluster.models.store import open_source
from cluster.plans.plan import BLOCK_TOKENS
from demo.training import exercises, tales
from demo.training.batches import token_weights
from demo.training.conversations import Conversations
from demo.training.corpus import CHAT, HELD_OUT_ONE_IN, PROSE, entry_maker, fact_paragraphs, own_text, table_maker

SEED = 2026
CONTINUED_TOKENS = 32
CONTEXT_TOKENS = 1024
LICENCE = Path(__file__).parents[1] / "LICENSE"


@dataclass(frozen=True, slots=True)
class Text:
    """A document's tokens, and which of them count."""

    ids: Tensor
    counts: Tensor


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench quality", description=__doc__)
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--texts", type=int, default=100, help="held-out documents of each kind")
    parser.add_argument("--greedy", type=int, default=256, help="tokens on which choices are compared")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    manifest = read_manifest(DEMO_MODEL, DEMO_MODEL.name)
    card = read_card(manifest.config)
    texts = {
        "dialogue": _held_out(CHAT, given.texts),
        "prose": _held_out(PROSE, given.texts),
        "LICENSE": _licence(),
    }
    print("| precision |" + "".join(f" {name} perplexity | to fp32 |" for name in texts) + " greedy agreement |")
    print("|---|" + "---|---|" * len(texts) + "---|")
    with torch.inference_mode():
        exact = _load(card, manifest, "fp32")
        wide = [_perplexity(exact, kind) for kind in texts.values()]
        continued = [_continue(exact, text) for text in texts["dialogue"][: given.greedy // CONTINUED_TOKENS]]
        for precision in given.precisions:
            model = _load(card, manifest, precision)
            found = [_perplexity(model, kind) for kind in texts.values()]
            cells = [
                f" {new:.4f} | {100 * (new / old - 1):+.2f} % |" for new, old in zip(found, wide, strict=True)
            ]
            agreed = sum(_agreed(model, text) for text in continued)
            print(f"| {precision} |{''.join(cells)} {agreed} of {len(continued) * CONTINUED_TOKENS} |", flush=True)


def _held_out(kind: int, count: int) -> list[Text]:
    """Return the first `count` documents that training's rule holds out."""
    random, draw = Random(SEED), _drawing(kind)
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    drawn = (draw(random) for _ in range(400 * count))
    unseen = (text for text in drawn if _is_held_out(text))
    distinct = islice(dict.fromkeys(islice(unseen, 2 * count)), count)
    return [_text(tokenizer.encode(text).ids[:CONTEXT_TOKENS], kind, tokenizer) for text in distinct]


def _licence() -> list[Text]:
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    ids = tokenizer.encode(LICENCE.read_text()).ids
    return [
        _text(ids[first : first + CONTEXT_TOKENS], PROSE, tokenizer)
        for first in range(0, len(ids), CONTEXT_TOKENS)
    ]


def _text(token_ids: list[int], kind: int, tokenizer: Tokenizer) -> Text:
    ids = np.array(token_ids, dtype=np.uint16)
    counts = token_weights(ids, np.full(len(ids), kind, dtype=np.uint8), tokenizer) == 100
    return Text(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(counts))


def _drawing(kind: int) -> Callable[[Random], str]:
    entries, tables = own_text()
    if kind == PROSE:
        facts = fact_paragraphs(entries, tables)
        return lambda random: facts(random) if random.random() < 0.4 else tales.short_or_long(random)
    makers = ((4.0, entry_maker(entries)), (2.2, table_maker(tables)), (1.6, exercises.draw), (0.25, tales.draw))
    conversations = Conversations(makers)
    return lambda random: conversations.draw(random).render()


def _is_held_out(text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) % HELD_OUT_ONE_IN == 0


def _load(card: ModelCard, manifest: Manifest, precision: Precision) -> StageModel:
    spec = StageSpec.whole(
        card.layers,
        precision=precision,
        context_tokens=card.context_tokens,
        kv_blocks=-(-card.context_tokens // BLOCK_TOKENS),
        slots=1,
    )
    return load_stage_model(card, manifest, spec, open_source(str(DEMO_MODEL)), torch.device("cpu"))


def _logits(model: StageModel, ids: Tensor, start: int = 0) -> Tensor:
    """Return next-token logits [tokens, vocabulary] after each of `ids`, which start at position `start`."""
    parts = []
    for first in range(0, len(ids), CHUNK_TOKENS):
        chunk = ids[first : first + CHUNK_TOKENS]
        batch = model.batch([0], [start + first], [len(chunk)])
        parts.append(model.logits(model.forward(model.embed(chunk), batch)).float())
    return torch.cat(parts)


def _perplexity(model: StageModel, texts: list[Text]) -> float:
    loss, tokens = 0.0, 0
    for text in texts:
        losses = torch.nn.functional.cross_entropy(_logits(model, text.ids[:-1]), text.ids[1:], reduction="none")
        loss += float(losses[text.counts[1:]].sum())
        tokens += int(text.counts[1:].sum())
    return math.exp(loss / tokens)


def _continue(model: StageModel, text: Text) -> Tensor:
    """Return the text up to where the assistant first speaks, with the model's greedy continuation."""
    ids = text.ids[: int(text.counts.nonzero()[0])]
    logits = _logits(model, ids)
    for _ in range(CONTINUED_TOKENS):
        following = logits[-1:].argmax(-1)
        ids = torch.cat((ids, following))
        logits = _logits(model, following, len(ids) - 1)
    return ids


def _agreed(model: StageModel, ids: Tensor) -> int:
    chosen = _logits(model, ids[:-1]).argmax(-1)
    return int((chosen == ids[1:])[-CONTINUED_TOKENS:].sum())
