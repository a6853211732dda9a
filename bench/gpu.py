"""Measure one stage of the 0.5 B model on this machine's GPU, beside transformers' `generate` on the same device.

The stage holds the whole model and takes the steps of the product's scheduler in this process, without links.
Every answer is checked: the model's greedy answers are known (bench/chain.py).
"""

import argparse
import gc
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.chain import Chain, make_chain
from cluster import wire
from cluster.compute.devices import pick_device
from cluster.compute.sampler import Sampler
from cluster.compute.stage_model import load_stage_model
from cluster.compute.steps import LoadedStage
from cluster.engine.scheduler import Scheduler
from cluster.engine.sequence import Sequence
from cluster.generation import Sampling
from cluster.models.manifest import Manifest, read_manifest
from cluster.models.model_card import PRECISIONS, Precision, read_card
from cluster.models.stage_spec import StageSpec
from cluster.models.store import open_source
from cluster.plans.plan import BLOCK_TOKENS

PROMPT_TOKENS, LONG_PROMPT_TOKENS = 64, 512
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""Continues prompts, greedily and together, by this many tokens each."""


def main(arguments: list[str]) -> None:
    given = _parse(arguments)
    device, about = pick_device()
    print(f"{about.name if about else 'CPU'}, torch {torch.__version__}, median of {given.rounds} rounds")
    heads = [f"{streams} streams, tokens/s" for streams in given.streams]
    print(f"| engine | precision | {' | '.join(heads)} | TTFT of {LONG_PROMPT_TOKENS} tokens, ms | GB |")
    print("|---" * (len(heads) + 4) + "|")
    with tempfile.TemporaryDirectory(prefix="millrace-gpu-") as scratch, torch.inference_mode():
        folder = make_chain(given.models or Path(scratch))
        manifest = read_manifest(folder, folder.name)
        for precision in given.precisions:
            stage = _load(manifest, folder, precision, device, max(given.streams))
            _print_line(f"Millrace | {precision}", lambda *work, on=stage: _answer(on, *work), given, device)
            del stage
            gc.collect()
            if given.transformers and precision in _DTYPES:
                model = _reference(folder, precision, device)
                _print_line(
                    f"transformers | {precision}", lambda *work, on=model: _generate(on, *work), given, device
                )
                del model
                gc.collect()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench gpu", description=__doc__)
    parser.add_argument("--models", type=Path, help="folder for the 0.5 B model; a scratch folder by default")
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS))
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transformers", action="store_true", help="measure transformers, too")
    return parser.parse_args(arguments)


def _print_line(name: str, generate: Generate, given: argparse.Namespace, device: torch.device) -> None:
    """Measure one engine at one precision. Exit if an answer is wrong."""
    speeds = []
    for streams in given.streams:
        _seconds(generate, streams, PROMPT_TOKENS, 2)
        # Both runs compute the prompts; their difference is decoding.
        decoding_s = [
            _seconds(generate, streams, PROMPT_TOKENS, given.tokens)
            - _seconds(generate, streams, PROMPT_TOKENS, 1)
            for _ in range(given.rounds)
        ]
        speeds.append(streams * (given.tokens - 1) / statistics.median(decoding_s))
    _seconds(generate, 1, LONG_PROMPT_TOKENS, 1)
    ttft_s = statistics.median(_seconds(generate, 1, LONG_PROMPT_TOKENS, 1) for _ in range(given.rounds))
    held = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0
    cells = " | ".join(f"{speed:.0f}" for speed in speeds)
    print(f"| {name} | {cells} | {1000 * ttft_s:.1f} | {held:.2f} |", flush=True)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _seconds(generate: Generate, streams: int, prompt_tokens: int, tokens: int) -> float:
    """Return the seconds until all streams have their tokens. Exit if one is wrong."""
    chain = Chain()
    # Prompts that differ every time: no cached prefix helps.
    asked = [chain.prompt(prompt_tokens, f"{time.perf_counter_ns()} {stream}") for stream in range(streams)]
    expected = [chain.answer(at, tokens) for _, at in asked]
    began_s = time.perf_counter()
    answers = generate([prompt for prompt, _ in asked], tokens)
    took_s = time.perf_counter() - began_s
    wrong = sum(answer != right for answer, right in zip(answers, expected, strict=True))
    if wrong:
        raise SystemExit(f"{wrong} of {streams} answers are wrong")
    return took_s


def _load(
    manifest: Manifest, folder: Path, precision: Precision, device: torch.device, streams: int
) -> LoadedStage:
    card = read_card(manifest.config)
    spec = StageSpec.whole(
        card.layers,
        precision=precision,
        context_tokens=card.context_tokens,
        kv_blocks=max(streams, 4) * 1024 // BLOCK_TOKENS,
        slots=max(streams, 4),
    )
    model = load_stage_model(card, manifest, spec, open_source(str(folder)), device)
    return LoadedStage(manifest.digest, spec, card, model, Sampler(card.vocabulary), device)


def _answer(stage: LoadedStage, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    scheduler = Scheduler(1, 1, slots=stage.spec.slots, kv_blocks=stage.spec.kv_blocks)
    greedy = Sampling(temperature=0.0)
    sequences = [Sequence(list(ids), len(ids), greedy, tokens_max=len(ids) + tokens) for ids in prompts]
    for sequence in sequences:
        scheduler.add(sequence)
    while work := scheduler.next_step():
        step, token_ids = work
        began_s = time.perf_counter()
        sampled, _ = stage.run(step, bytearray(array("i", token_ids).tobytes()))
        assert isinstance(sampled, wire.Sampled)
        for sequence, _ in scheduler.commit(sampled, time.perf_counter() - began_s):
            if len(sequence.tokens) == sequence.tokens_max:
                scheduler.finish(sequence)
    stage.forget()
    return [sequence.tokens[len(prompt) :] for sequence, prompt in zip(sequences, prompts, strict=True)]


def _reference(folder: Path, precision: Precision, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=_DTYPES[precision]).to(device).eval()


def _generate(model: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    ids = torch.tensor(prompts, device=model.device)
    answers = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return [answer[ids.shape[1] :].tolist() for answer in answers]
