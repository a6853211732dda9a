"""Measure how close decoding one stream comes to the memory bandwidth of one core.

A whole model is one stage in this process, on one thread and core. Decoding reads every weight once per token. So
tokens/s times the weights' bytes is compared with the rate at which the same core reads memory, measured right
before and after. Weights may take fewer bytes than their precision, if nothing is lost. One share refers to the
bytes in memory, the other to the bytes of the precision. The KV cache is not counted.
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.chain import Chain, make_chain
from bench.models import DEMO_MODEL
from bench.network import two_cores
from cluster.compute.stage_model import StageModel, load_stage_model
from cluster.models.manifest import Manifest, read_manifest
from cluster.models.model_card import ModelCard, Precision, read_card
from cluster.models.stage_spec import CHUNK_TOKENS, StageSpec
from cluster.models.store import open_source
from cluster.plans.plan import BLOCK_TOKENS

READ_BYTES = 512 * 2**20
WARM_UP_TOKENS = 4


def main(arguments: list[str]) -> None:
    given = _parse(arguments)
    os.sched_setaffinity(0, {two_cores()[0]})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="millrace-decode-") as scratch, torch.inference_mode():
        folder = DEMO_MODEL if given.demo else make_chain(given.models or Path(scratch))
        manifest = read_manifest(folder, folder.name)
        card = read_card(manifest.config)
        print(f"{folder.name}, one core, {given.long} tokens held, median of {given.rounds} rounds")
        print(
            "| precision | rows | tokens/s | GB held, by precision | core reads GB/s "
            "| share of what is held (range) | of the precision's limit | load |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for precision in given.precisions:
            model = _load(card, manifest, folder, precision, max(given.rows))
            for rows in given.rows:
                print(_line(card, model, precision, rows, given), flush=True)
            del model
            gc.collect()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench decode", description=__doc__)
    parser.add_argument(
        "--models", type=Path, help="folder for the 0.5 B model, created if missing; a scratch folder by default"
    )
    parser.add_argument("--demo", action="store_true", help="the demo model: small enough for caches, so no limit")
    parser.add_argument("--precisions", nargs="*", default=["fp32", "int8"])
    parser.add_argument("--rows", type=int, nargs="*", default=[1], help="streams decoding together")
    parser.add_argument("--long", type=int, default=64, help="tokens that each stream holds")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(arguments)


def _load(card: ModelCard, manifest: Manifest, folder: Path, precision: Precision, slots: int) -> StageModel:
    spec = StageSpec.whole(
        card.layers,
        precision=precision,
        context_tokens=card.context_tokens,
        kv_blocks=slots * -(-card.context_tokens // BLOCK_TOKENS),
        slots=slots,
    )
    return load_stage_model(card, manifest, spec, open_source(str(folder)), torch.device("cpu"))


def _line(card: ModelCard, model: StageModel, precision: Precision, rows: int, given: argparse.Namespace) -> str:
    # The embedding's one row per token is negligible beside the layers and the head.
    named_bytes = sum(card.layer_bytes(precision, layer) for layer in range(card.layers))
    named_bytes += card.head_bytes(precision)
    held_bytes = _held_bytes()
    tokens = _prefill(model, rows, given.long)
    speeds, reads, shares = [], [], []
    for _ in range(given.rounds):
        before = _read_rate()
        steps_per_s = _decode(model, tokens, given.long, given.tokens)
        read = (before + _read_rate()) / 2
        speeds.append(rows * steps_per_s)
        reads.append(read)
        shares.append(steps_per_s * held_bytes / read)
    share, named = statistics.median(shares), statistics.median(shares) * named_bytes / held_bytes
    return (
        f"| {precision} | {rows} | {statistics.median(speeds):.1f} "
        f"| {held_bytes / 1e9:.2f}, {named_bytes / 1e9:.2f} | {statistics.median(reads) / 1e9:.1f} "
        f"| {100 * share:.0f} % ({100 * min(shares):.0f}-{100 * max(shares):.0f}) | {100 * named:.0f} % "
        f"| {os.getloadavg()[0]:.1f} |"
    )


def _held_bytes() -> int:
    """Return the bytes of all packed matrices of this process. Only the matrices know how they are stored."""
    packed = ("cluster.compute.float_linear", "cluster.compute.int_linear")
    return sum(matrix.weight_bytes for matrix in gc.get_objects() if type(matrix).__module__ in packed)


def _prefill(model: StageModel, rows: int, long: int) -> torch.Tensor:
    """Fill slots 0 to rows - 1 with `long` tokens each. Return the next token of each."""
    chain, following = Chain(), []
    for slot in range(rows):
        ids, _ = chain.prompt(long, f"decode {slot}")
        model.cache.reserve(slot, long + 1024)
        for first in range(0, long, CHUNK_TOKENS):
            chunk = torch.tensor(ids[first : first + CHUNK_TOKENS])
            batch = model.batch([slot], [first], [len(chunk)])
            hidden = model.forward(model.embed(chunk), batch)
        following.append(model.logits(hidden[-1:]).argmax(-1))
    return torch.cat(following)


def _decode(model: StageModel, tokens: torch.Tensor, start: int, steps: int) -> float:
    """Return greedy steps per second, each of one token per slot. Every round overwrites the same positions."""
    slots, counts = list(range(len(tokens))), [1] * len(tokens)
    began_s = 0.0
    for step in range(WARM_UP_TOKENS + steps):
        if step == WARM_UP_TOKENS:
            began_s = time.perf_counter()
        batch = model.batch(slots, [start + step] * len(slots), counts)
        tokens = model.logits(model.forward(model.embed(tokens), batch)).argmax(-1)
    return steps / (time.perf_counter() - began_s)


def _read_rate() -> float:
    """Return the bytes per second that this core reads from a buffer far beyond its caches: the better of two
    ways.
    """
    values, vector = torch.ones(READ_BYTES // 4 // 4096, 4096), torch.ones(4096)
    ways: tuple[Callable[[], torch.Tensor], ...] = (lambda: values @ vector, lambda: values.sum())
    times_s = []
    for way in ways:
        way()
        began_s = time.perf_counter()
        way()
        way()
        times_s.append((time.perf_counter() - began_s) / 2)
    return READ_BYTES / min(times_s)
