"""Turn documents into batches: rows that begin with a document and are filled with as many others as fit."""

import json
from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from demo.training.conversations import START
from demo.training.corpus import CHAT, PROSE

SHORT, LONG = 256, 1024
PROMPT_WEIGHT = 20  # per cent: predicting questions matters less than predicting answers
LONG_SHARE = 0.15
LONG_ROWS_TAKE = 0.15
PROSE_SHARE = (0.35, 0.08)  # at the beginning and at the end of training
LOOK_AHEAD = 256
Ids = NDArray[np.uint16]
Weights = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Documents:
    """Encoded documents, one after the other, and each token's weight in the loss (per cent)."""

    ids: Ids
    weights: Weights
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    held_out: NDArray[np.bool_]

    def select(self, *, kind: int, held_out: bool) -> NDArray[np.int64]:
        """Return the numbers of the documents of one kind."""
        return np.flatnonzero((self.kinds == kind) & (self.held_out == held_out))


def load(folder: Path) -> tuple[Documents, Tokenizer, dict[str, object]]:
    """Return the corpus, its tokenizer, and the content of corpus.json."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with np.load(folder / "corpus.npz") as stored:
        ids, lengths, kinds, held_out = (stored[name] for name in ("ids", "lengths", "kinds", "held_out"))
    starts = np.cumsum(lengths) - lengths
    weights = token_weights(ids, np.repeat(kinds, lengths), tokenizer)
    about = json.loads((folder / "corpus.json").read_text())
    return Documents(ids, weights, starts, lengths, kinds, held_out), tokenizer, about


def token_weights(ids: Ids, kinds: NDArray[np.uint8], tokenizer: Tokenizer) -> Weights:
    """Return loss weights: full for prose and for what the assistant says, little for the rest of a
    conversation.
    """
    header = tokenizer.encode(f"{START}assistant\n").ids
    opens = ids == header[0]
    turn = np.cumsum(opens)
    first = np.flatnonzero(opens)
    by_assistant = np.concatenate(([False], ids[np.minimum(first + 1, len(ids) - 1)] == header[1]))
    spoken = by_assistant[turn] & (kinds == CHAT)
    for offset in range(len(header)):
        spoken[np.minimum(first + offset, len(ids) - 1)] = False
    return np.where(spoken | (kinds == PROSE), 100, PROMPT_WEIGHT).astype(np.uint8)


def pack(documents: Documents, chosen: NDArray[np.int64], length: int) -> tuple[Ids, Weights]:
    """Return rows of `length` + 1 tokens. Conversations are never cut; longer prose is cut into rows."""
    pieces: list[tuple[int, int]] = []
    for number in chosen:
        start, size = int(documents.starts[number]), int(documents.lengths[number])
        pieces.extend((start + at, min(length + 1, size - at)) for at in range(0, size, length + 1))
    rows: list[list[tuple[int, int]]] = []
    waiting: list[tuple[int, int]] = []  # (size, start), sorted, the next few pieces
    upcoming = iter(pieces)
    for start, size in upcoming:
        insort(waiting, (size, start))
        if len(waiting) >= LOOK_AHEAD:
            rows.append(_fill_row(waiting, length + 1))
    while waiting:
        rows.append(_fill_row(waiting, length + 1))
    ids = np.zeros((len(rows), length + 1), dtype=np.uint16)
    weights = np.zeros((len(rows), length + 1), dtype=np.uint8)
    for row, parts in enumerate(rows):
        at = 0
        for size, start in parts:
            ids[row, at : at + size] = documents.ids[start : start + size]
            weights[row, at : at + size] = documents.weights[start : start + size]
            at += size
    return ids, weights


def _fill_row(waiting: list[tuple[int, int]], room: int) -> list[tuple[int, int]]:
    """Take pieces for one row: the middle one first, then always the largest that fits."""
    taken = [waiting.pop(len(waiting) // 2)]
    room -= taken[0][0]
    while waiting:
        at = bisect_right(waiting, (room + 1, -1)) - 1
        if at < 0:
            break
        taken.append(waiting.pop(at))
        room -= taken[-1][0]
    return taken


class Rows:
    """An endless supply of rows of one kind, packed again for every pass."""

    def __init__(self, documents: Documents, chosen: NDArray[np.int64], length: int, seed: int) -> None:
        self.documents, self.chosen, self.length = documents, chosen, length
        self.random = np.random.default_rng(seed)
        self.passes = 0
        self._supply = self._rows()

    def _rows(self) -> Iterator[tuple[Ids, Weights]]:
        while True:
            ids, weights = pack(self.documents, self.random.permutation(self.chosen), self.length)
            for row in self.random.permutation(len(ids)):
                yield ids[row], weights[row]
            self.passes += 1

    def take(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the next rows as token ids and loss weights."""
        ids, weights = zip(*(next(self._supply) for _ in range(count)), strict=True)
        return torch.from_numpy(np.stack(ids).astype(np.int64)), torch.from_numpy(np.stack(weights)).float() / 100


class Batches:
    """Draw micro-batches: short rows of chat or prose, and sometimes long rows of both."""

    def __init__(self, documents: Documents, micro_tokens: int, seed: int) -> None:
        chat, prose = (documents.select(kind=kind, held_out=False) for kind in (CHAT, PROSE))
        self.random = np.random.default_rng(seed)
        everything = np.concatenate((chat, prose))
        too_long = documents.lengths[everything] > SHORT + 1
        sampled = self.random.random(len(everything)) < LONG_ROWS_TAKE
        fits = documents.lengths[chat] <= SHORT + 1
        self.chat = Rows(documents, chat[fits], SHORT, seed + 1)
        self.prose = Rows(documents, prose, SHORT, seed + 2)
        self.long = Rows(documents, everything[too_long | sampled], LONG, seed + 3)
        self.micro_tokens = micro_tokens

    def take(self, progress: float) -> tuple[Tensor, Tensor]:
        """Return the next micro-batch. Prose gives way to chat during training."""
        first, last = PROSE_SHARE
        draw = self.random.random()
        if draw < LONG_SHARE:
            rows = self.long
        elif self.random.random() < first + (last - first) * progress:
            rows = self.prose
        else:
            rows = self.chat
        return rows.take(self.micro_tokens // rows.length)

    def passes(self) -> dict[str, int]:
        """Return how often each supply was read to its end."""
        return {"chat": self.chat.passes, "prose": self.prose.passes, "long": self.long.passes}


def held_out_rows(documents: Documents, kind: int, limit: int) -> tuple[Tensor, Tensor]:
    """Return rows outside of training. In conversations only what the assistant says counts."""
    chosen = documents.select(kind=kind, held_out=True)
    chosen = chosen[documents.lengths[chosen] <= SHORT + 1] if kind == CHAT else chosen
    ids, weights = pack(documents, chosen, SHORT)
    picked = np.random.default_rng(0).permutation(len(ids))[:limit]
    return torch.from_numpy(ids[picked].astype(np.int64)), torch.from_numpy(weights[picked] == 100).float()
