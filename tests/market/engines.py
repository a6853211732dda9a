"""Real models that sellers run in the tests: the demo model in several precisions, and others behind its name."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from bench.models import DEMO_MODEL
from cluster.compute.stage_model import StageModel, load_stage_model
from cluster.models.manifest import read_manifest
from cluster.models.model_card import Precision, read_card
from cluster.models.stage_spec import CHUNK_TOKENS, StageSpec
from cluster.models.store import open_source
from cluster.plans.plan import BLOCK_TOKENS
from demo.training import tales
from demo.training.corpus import entry_maker, own_text
from market.protocol.audits.logprobs import GreedyToken

_END_IDS = (0, 2)


SLOTS = 16
_CONTEXT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model that answers greedily."""

    model: StageModel

    def answers(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[GreedyToken, ...]]:
        """Its most probable next tokens up to the end of each answer, with their margins."""
        with torch.inference_mode():
            firsts = range(0, len(prompts), SLOTS)
            return [each for first in firsts for each in self._together(prompts[first : first + SLOTS], tokens)]

    def _together(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[GreedyToken, ...]]:
        shown = [list(prompt) for prompt in prompts]
        found: list[list[GreedyToken]] = [[] for _ in shown]
        running = list(range(len(shown)))
        logits = torch.cat([self._read(slot, ids) for slot, ids in enumerate(shown)])
        for _ in range(tokens):
            best = logits.log_softmax(-1).topk(2)
            chosen = best.indices[:, 0].tolist()
            for slot, id_, (one, other) in zip(running, chosen, best.values.tolist(), strict=True):
                if id_ not in _END_IDS:
                    found[slot].append(GreedyToken(tokenizer().decode([id_]), one - other))
            going = [(slot, id_) for slot, id_ in zip(running, chosen, strict=True) if id_ not in _END_IDS]
            if not going:
                break
            running = [slot for slot, _ in going]
            starts = [len(shown[slot]) + len(found[slot]) - 1 for slot in running]
            batch = self.model.batch(running, starts, [1] * len(running))
            logits = self._forward([id_ for _, id_ in going], batch)
        return [tuple(each) for each in found]

    def _read(self, slot: int, ids: Sequence[int]) -> torch.Tensor:
        """Logits behind the last of `ids`, [1, vocabulary]."""
        logits = torch.empty(0)
        for first in range(0, len(ids), CHUNK_TOKENS):
            chunk = ids[first : first + CHUNK_TOKENS]
            logits = self._forward(chunk, self.model.batch([slot], [first], [len(chunk)]))[-1:]
        return logits

    def _forward(self, ids: Sequence[int], batch: Any) -> torch.Tensor:
        return self.model.logits(self.model.forward(self.model.embed(torch.tensor(ids)), batch)).float()


def load(precision: Precision, folder: Path = DEMO_MODEL) -> Engine:
    manifest = read_manifest(folder, folder.name)
    card = read_card(manifest.config)
    spec = StageSpec.whole(
        card.layers,
        precision=precision,
        context_tokens=_CONTEXT_TOKENS,
        kv_blocks=SLOTS * _CONTEXT_TOKENS // BLOCK_TOKENS,
        slots=SLOTS,
    )
    model = load_stage_model(card, manifest, spec, open_source(str(folder)), torch.device("cpu"))
    return Engine(model)


def write_random(folder: Path) -> Path:
    """Another model of the same shape, which has learned nothing."""
    torch.manual_seed(4)
    weights = load_file(DEMO_MODEL / "model.safetensors")
    noise = {name: torch.randn_like(each) * 0.02 if each.ndim > 1 else each for name, each in weights.items()}
    return _write(folder, noise, {})


def write_smaller(folder: Path, layers: int) -> Path:
    """The same model with its last layers left out: cheaper, and the nearest that another model can be."""
    weights = load_file(DEMO_MODEL / "model.safetensors")
    left = {
        name: each for name, each in weights.items() if not any(f"layers.{n}." in name for n in range(layers, 99))
    }
    return _write(folder, left, {"num_hidden_layers": layers})


def _write(folder: Path, weights: dict[str, torch.Tensor], changes: dict[str, int]) -> Path:
    folder.mkdir()
    for file in DEMO_MODEL.glob("*.json"):
        shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    save_file(weights, folder / "model.safetensors")
    return folder


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))


def ids_of(*texts: str) -> list[int]:
    """A conversation as the model's template writes it; user and assistant in turn, the assistant's turn next."""
    turns = (f"<|im_start|>{('user', 'assistant')[n % 2]}\n{each}<|im_end|>\n" for n, each in enumerate(texts))
    return list(tokenizer().encode("".join(turns) + "<|im_start|>assistant\n").ids)


def questions(count: int, seed: int = 3) -> list[str]:
    """As users ask them, of all kinds that the model knows."""
    random, (entries, _) = Random(seed), own_text()
    draw = entry_maker(entries)
    return [(draw if random.random() < 0.7 else tales.draw)(random).question for _ in range(count)]
