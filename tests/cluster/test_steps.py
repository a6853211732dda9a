"""The engine without its links: scheduler and real stages of the demo model, step by step in one process."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
import transformers

from cluster.compute.decoder import Decoder
from cluster.compute.rows import decode, encode, narrowed
from cluster.compute.sampler import Sampler
from cluster.compute.stage_model import load_stage_model, new_cache
from cluster.compute.steps import LoadedStage
from cluster.engine.scheduler import Scheduler
from cluster.engine.sealing import Seal
from cluster.engine.sequence import Sequence
from cluster.errors import ClusterError, FrameInvalid
from cluster.generation import Sampling
from cluster.models.manifest import Manifest, read_manifest
from cluster.models.model_card import Precision, read_card
from cluster.models.stage_spec import StageSpec, WireFormat
from cluster.models.store import open_source
from cluster.wire import Move, OpenSlot, Restore, Sampled, Save, Step

DEMO_MODEL = Path(__file__).parents[2] / "demo" / "model"
CPU = torch.device("cpu")
GREEDY = Sampling(temperature=0.0)
BLOCKS = 64


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(DEMO_MODEL, "demo")


@pytest.fixture(scope="module")
def reference() -> "transformers.LlamaForCausalLM":
    return transformers.LlamaForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()


def load(
    manifest: Manifest,
    index: int,
    stages: int,
    wire: WireFormat = "fp32",
    precision: Precision = "fp32",
    device: torch.device = CPU,
) -> LoadedStage:
    card = read_card(manifest.config)
    spec = StageSpec(
        index=index,
        stages=stages,
        first_layer=index * card.layers // stages,
        end_layer=(index + 1) * card.layers // stages,
        precision=precision,
        context_tokens=card.context_tokens,
        kv_blocks=BLOCKS,
        slots=8,
        wire=wire,
    )
    model = load_stage_model(card, manifest, spec, open_source(str(DEMO_MODEL)), device)
    return LoadedStage(manifest.digest, spec, card, model, Sampler(card.vocabulary), device)


class StageChain:
    """Carries steps from stage to stage as bytes, one step at a time."""

    def __init__(
        self,
        manifest: Manifest,
        stages: int,
        wire: WireFormat = "fp32",
        precision: Precision = "fp32",
        device: torch.device = CPU,
    ) -> None:
        self.manifest = manifest
        self.wire: WireFormat = wire
        self.stages = [load(manifest, index, stages, wire, precision, device) for index in range(stages)]
        self.scheduler = Scheduler(1, stages, slots=8, kv_blocks=BLOCKS)
        self.steps: list[Step] = []
        self.seal = Seal(bytes(32))

    def add(self, prompt: list[int], tokens: int, sampling: Sampling = GREEDY) -> Sequence:
        sequence = Sequence(list(prompt), len(prompt), sampling, tokens_max=len(prompt) + tokens)
        self.scheduler.add(sequence)
        return sequence

    def lose(self, *indices: int) -> None:
        """Start these stages again. Only weights remain, because reading them again would take most of the CPU."""
        for index in indices:
            lost = self.stages[index]
            assert isinstance(lost.model, Decoder)
            cache = new_cache(lost.card, lost.spec, lost.device)
            model = Decoder(lost.card, lost.spec, lost.model._weights, cache, lost.model.row_dtype, lost.device)
            self.stages[index] = replace(lost, model=model, sampler=Sampler(lost.card.vocabulary))
        self.scheduler.restart(self.scheduler.epoch + 1, list(indices))

    def turn(self) -> bool:
        """Run one step through all stages. Return False if there is none to send."""
        with torch.inference_mode():
            work = self.scheduler.next_step()
            if work is None:
                return False
            step, token_ids = work
            self.steps.append(step)
            self.carry(step, bytearray(torch.tensor(token_ids, dtype=torch.int32).numpy().tobytes()))
        return True

    def carry(self, step: Step, payload: bytearray) -> None:
        answer: Step | Sampled = step
        self.seal.close(step)
        for stage in self.stages:
            assert isinstance(answer, Step)
            if stage.spec.is_last:
                self.seal.open(answer)
            else:  # Stages in between see no tokens: drafts and histories pass encrypted.
                assert not answer.drafts
                assert not answer.opened
            answer, content = stage.run(answer, payload)
            payload = bytearray(content)
        assert isinstance(answer, Sampled)
        for sequence, _ in self.scheduler.commit(answer, 0.001):
            if len(sequence.tokens) == sequence.tokens_max:
                self.scheduler.finish(sequence)

    def run(self) -> None:
        while self.turn():
            pass
        self.scheduler.check_integrity()
        census = self.scheduler.census()
        assert census
        self.carry(census, bytearray())


def likeliest(reference: "transformers.LlamaForCausalLM", tokens: list[int], prompt_tokens: int) -> list[int]:
    """Return the reference's likeliest next token after the prompt and after each later token but the last.

    If they are the sequence's own, it is the reference's greedy output, at the cost of one pass.
    """
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([tokens[:-1]])).logits[0, prompt_tokens - 1 :]
    return [int(token) for token in logits.argmax(-1)]


def prompt_of(length: int, seed: int) -> list[int]:
    return [int(t) for t in torch.randint(10, 4000, (length,), generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize(("tokens", "losses"), [(24, 0.12), pytest.param(60, 0.06, marks=pytest.mark.slow)])
def test_shared_beginnings_drafts_and_lost_stages_change_no_token(
    manifest: Manifest,
    reference: "transformers.LlamaForCausalLM",
    tokens: int,
    losses: float,
    stage_device: torch.device,
) -> None:
    """Any of three stages is lost at any time. Replayed, copied and drafted tokens equal the expected ones."""
    chain, chance = StageChain(manifest, 3, device=stage_device), Random(1)
    system = prompt_of(200, 1)
    prompts = [[*system, *prompt_of(30 + at, at + 2)] for at in range(4)] + [prompt_of(10, 9) * 20]
    sequences = [chain.add(prompt, tokens) for prompt in prompts]
    turns = 0
    while chain.turn():
        turns += 1
        if turns > 8 and chance.random() < losses:
            chain.lose(*(index for index in range(3) if chance.random() < 0.5))
    chain.run()
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert (sequence.tokens[: len(prompt)], len(sequence.tokens)) == (prompt, len(prompt) + tokens)
        assert sequence.tokens[len(prompt) :] == likeliest(reference, sequence.tokens, len(prompt))
    assert any(step.drafts for step in chain.steps), "nothing was drafted"
    assert any(0 < len(step.replay) < 3 for step in chain.steps)
    assert any(move.tokens for step in chain.steps for move in step.moves), "no beginning was shared"


@pytest.mark.parametrize(
    ("precision", "stages", "wire", "gap_max"),
    [
        ("fp32", 1, "fp32", 0.0),
        ("fp32", 2, "fp32", 0.0),
        ("bf16", 3, "bf16", 0.25),
        ("fp16", 2, "fp16", 0.1),
        ("int8", 3, "int8", 0.5),
        ("int4", 1, "fp32", 1.5),
        ("int4", 2, "bf16", 1.5),
    ],
)
def test_greedy_tokens_are_those_of_the_reference(
    manifest: Manifest,
    reference: "transformers.LlamaForCausalLM",
    precision: Precision,
    stages: int,
    wire: WireFormat,
    gap_max: float,
    stage_device: torch.device,
) -> None:
    """A token may differ only if the reference's logit of it is close to that of its own token."""
    chain = StageChain(manifest, stages, wire, precision, stage_device)
    system = prompt_of(100, 1)
    prompts = [*([*system, *prompt_of(20 + at, at + 2)] for at in range(4)), prompt_of(10, 9) * 8]
    sequences = [chain.add(prompt, 24) for prompt in prompts]
    chain.run()
    for prompt, sequence in zip(prompts, sequences, strict=True):
        output = sequence.tokens[len(prompt) :]
        assert len(output) == 24
        with torch.inference_mode():
            logits = reference(input_ids=torch.tensor([sequence.tokens[:-1]])).logits[0, len(prompt) - 1 :]
        gaps = logits.amax(-1) - logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert float(gaps.max()) <= gap_max


def test_drafts_change_no_drawn_token(manifest: Manifest, stage_device: torch.device) -> None:
    """With temperature, penalties and a seed the same tokens come with drafts as without."""
    sampling = Sampling(temperature=0.7, seed=5, presence_penalty=0.3, repetition_penalty=1.1)
    prompt = prompt_of(8, 3) * 12
    drafted, plain = StageChain(manifest, 2, device=stage_device), StageChain(manifest, 2, device=stage_device)
    first = drafted.add(prompt, 80, sampling)
    second = plain.add(prompt, 80, sampling)
    drafted.run()
    second.tokens_max = 0  # Sequences with an unknown end get no drafts.
    while len(second.tokens) < len(first.tokens):
        plain.turn()
    assert first.tokens == second.tokens
    assert any(step.drafts for step in drafted.steps)
    assert not any(step.drafts for step in plain.steps)


@pytest.mark.parametrize(("wire", "worst"), [("bf16", 0.004), ("fp16", 0.0005), ("int8", 0.03)])
def test_rows_survive_the_link(wire: WireFormat, worst: float) -> None:
    """A row with two massive channels has a small relative error, and stored rows are sent again unchanged."""
    rows = torch.randn(5, 200, generator=torch.Generator().manual_seed(1))
    rows[:, 7] *= 300
    kept = narrowed(rows, wire)
    content = bytearray(encode(kept, wire))
    back = decode(content, 5, 200, wire, torch.float32)
    assert (back - rows).norm() / rows.norm() < worst
    ordinary = list(range(128, 200))
    assert (back - rows)[:, ordinary].norm() / rows[:, ordinary].norm() < 0.012
    assert bytearray(encode(kept.clone(), wire)) == content
    with pytest.raises(FrameInvalid, match="200 values"):
        decode(content[:-1], 5, 200, wire, torch.float32)


def test_a_stage_refuses_steps_that_contradict_the_plan(manifest: Manifest) -> None:
    """A peer with a valid certificate may still send wrong values, so every value is checked."""
    stage = load(manifest, 0, 1)
    good: dict[str, Any] = {
        "epoch": 1, "batch": 1, "slots": [0], "starts": [0], "counts": [2], "wanted": [1], "drafts": [],
        "opened": [OpenSlot(0, Sampling(), [], 2)], "moves": [], "replay": [], "census": None,
        "is_reset": False, "spent_ns": [],
    }  # fmt: skip
    payload = bytearray(torch.tensor([5, 6], dtype=torch.int32).numpy().tobytes())
    bad: list[dict[str, Any]] = [
        {"slots": [8]}, {"slots": [-1]}, {"slots": [0, 0], "starts": [0, 0], "counts": [1, 1], "wanted": [0, 0]},
        {"starts": [-1]}, {"starts": [1023]}, {"counts": [0]}, {"counts": [3]}, {"wanted": [3]}, {"wanted": [2]},
        {"wanted": []}, {"drafts": [[1]]}, {"drafts": [[], []]}, {"moves": [Move(1, 0, 0)]}, {"moves": [Move(8)]},
        {"opened": [OpenSlot(0, Sampling(), [4096], 1)]},
        {"opened": [OpenSlot(0, Sampling(logit_bias={-1: 1.0}), [], 1)]},
        {"saves": [Save(8, [])]}, {"saves": [Save(0, [b"../../identity"])]}, {"saves": [Save(0, [bytes(16)] * 17)]},
        {"restores": [Restore(0, 0, 1, [bytes(16)])]},
    ]  # fmt: skip
    restores = [Restore(-1, 0, 1, []), Restore(0, -1, 1, []), Restore(0, 15, 2, []), Restore(0, 0, 0, [bytes(16)])]
    restores.append(Restore(0, 0, 1, [b"../../identity"]))
    rowless: dict[str, Any] = {"slots": [], "starts": [], "counts": [], "wanted": [], "opened": []}
    with torch.inference_mode():
        for change in bad:
            with pytest.raises(FrameInvalid):
                stage.run(Step(**(good | change)), payload)
        for restore in restores:
            with pytest.raises(FrameInvalid):
                stage.run(Step(**(good | rowless | {"restores": [restore]})), bytearray())
        with pytest.raises(FrameInvalid, match="vocabulary"):
            stage.run(Step(**good), bytearray(b"\xff" * 8))
        with pytest.raises(ClusterError, match="coordinator counts"):
            stage.run(Step(**(good | {"census": [(0, 3)]})), payload)
        stage.run(Step(**good), payload)
        nothing = stage.run(Step(**(good | rowless | {"restores": [Restore(1, 0, 1, [bytes(16)])]})), bytearray())
        assert isinstance(nothing[0], Sampled)
        assert nothing[0].restored == [0], "a stage without saved blocks restores none"


def test_a_sealed_part_opens_only_as_it_was_closed() -> None:
    fields: dict[str, Any] = {
        "epoch": 1, "batch": 7, "slots": [0], "starts": [0], "counts": [2], "wanted": [2], "drafts": [[5]],
        "opened": [OpenSlot(0, Sampling(), [1, 2, 3], 3)], "moves": [], "replay": [], "census": None,
        "is_reset": False, "spent_ns": [],
    }  # fmt: skip
    seal, step = Seal(bytes(32)), Step(**fields)
    seal.close(step)
    assert (step.drafts, step.opened) == ([], [])
    changed = msgspec.structs.replace(step, sealed=bytes([step.sealed[0] ^ 1]) + step.sealed[1:])
    moved = msgspec.structs.replace(step, batch=8)
    for wrong in (changed, moved):
        with pytest.raises(FrameInvalid, match="changed on its way"):
            seal.open(wrong)
    seal.open(step)
    assert step == Step(**fields)
