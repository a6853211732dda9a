"""Train the demo model, and write it as a checkpoint folder with a record of the run.

    python -m demo.training.train --corpus demo/training/.corpus --out demo/model --minutes 180

On two CPU cores this takes hours, on a large GPU minutes. The learning rate follows the budget: a share of the
wall clock, or of a fixed number of steps (`--steps`, which makes a run repeatable). With `--state FILE`, a stopped
run continues where it was.
"""

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from demo.training.batches import Batches, Documents, held_out_rows, load
from demo.training.checkpoint import save_checkpoint
from demo.training.corpus import CHAT, PROSE
from demo.training.model import Llama, Shape

WARM_UP_STEPS = 60
FINAL_RATE_SHARE = 0.02
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
MAX_GRADIENT_NORM = 1.0
HELD_OUT_ROWS = 192
Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to train: until the time or the steps run out, whichever comes first."""

    seconds: float
    steps: int

    def progress(self, seconds: float, steps: int) -> float:
        """Return the progress, from 0 at the start to 1 at the end."""
        return min(1.0, max(seconds / self.seconds, steps / self.steps))


@dataclass(slots=True)
class Progress:
    """What has been done so far. It survives an interruption."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    losses: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """One training run."""

    def __init__(self, documents: Documents, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device = torch.device("cuda" if torch.cuda.is_available() and not arguments.cpu else "cpu")
        on_gpu = self.device.type == "cuda"
        self.micro_tokens = arguments.micro_tokens or (131_072 if on_gpu else 2_048)
        self.micro_batches = max(1, (arguments.step_tokens or (131_072 if on_gpu else 8_192)) // self.micro_tokens)
        self.model = Llama(Shape(), arguments.seed).to(self.device)
        self.batches = Batches(documents, self.micro_tokens, arguments.seed)
        self.held_out = {
            name: held_out_rows(documents, kind, HELD_OUT_ROWS)
            for name, kind in (("dialogue", CHAT), ("prose", PROSE))
        }
        self.optimizers = self._make_optimizers()
        self.loss: Loss = torch.compile(self.model.loss, dynamic=False) if arguments.compile else self.model.loss
        self.budget = Budget(arguments.minutes * 60, arguments.steps)
        self.done = Progress()

    def _make_optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """Return Muon for the layers' matrices, and AdamW for the embedding and the norms.

        With AdamW alone, the first million tokens brought the held-out loss to 3.4; with Muon at this rate, to
        2.9.
        """
        embedding = self.model.model.embed_tokens.weight
        gains = [parameter for parameter in self.model.parameters() if parameter.dim() == 1]
        matrices = [parameter for parameter in self.model.model.layers.parameters() if parameter.dim() == 2]
        rate = self.arguments.rate
        adamw_groups = [
            {"params": [embedding], "weight_decay": WEIGHT_DECAY},
            {"params": gains, "weight_decay": 0.0},
        ]
        return (
            torch.optim.AdamW(adamw_groups, lr=rate, betas=BETAS, fused=True),
            torch.optim.Muon(matrices, lr=rate, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
        )

    def run(self) -> None:
        """Train until the budget is spent."""
        started = time.monotonic() - self.done.seconds
        reported = saved = time.monotonic()
        recent: list[float] = []
        while (progress := self.budget.progress(self.done.seconds, self.done.steps)) < 1.0:
            recent.append(self._step(progress))
            self.done.seconds = time.monotonic() - started
            if time.monotonic() - reported > self.arguments.report_seconds:
                self._report(progress, sum(recent) / len(recent))
                recent, reported = [], time.monotonic()
            if self.arguments.state and time.monotonic() - saved > self.arguments.save_seconds:
                self.save_state()
                saved = time.monotonic()
        self._report(1.0, sum(recent) / max(1, len(recent)))

    def _step(self, progress: float) -> float:
        """Do one optimizer step over some micro-batches. Return the mean loss per counted token."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self._rate(progress)
        micro = [self.batches.take(progress) for _ in range(self.micro_batches)]
        counted = sum(float(weights[:, 1:].sum()) for _, weights in micro)
        total = 0.0
        for ids, weights in micro:
            with torch.autocast(self.device.type, torch.bfloat16):
                summed, _ = self.loss(ids.to(self.device), weights.to(self.device))
            torch.autograd.backward(summed / counted)
            total += float(summed.detach())
            self.done.tokens += ids.shape[0] * (ids.shape[1] - 1)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.done.steps += 1
        return total / counted

    def _rate(self, progress: float) -> float:
        """Return the learning rate: warm-up, then half a cosine down to a small remainder."""
        warm = min(1.0, (self.done.steps + 1) / WARM_UP_STEPS)
        falling = FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))
        return float(self.arguments.rate * warm * falling)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the loss per token on held-out rows: what the assistant says in dialogues, and prose."""
        losses = {}
        for name, (ids, weights) in self.held_out.items():
            total = counted = 0.0
            rows = self.micro_tokens // (ids.shape[1] - 1)
            for at in range(0, len(ids) - rows + 1, rows):
                with torch.autocast(self.device.type, torch.bfloat16):
                    summed, count = self.loss(
                        ids[at : at + rows].to(self.device), weights[at : at + rows].to(self.device)
                    )
                total, counted = total + float(summed), counted + float(count)
            losses[name] = total / counted
        return losses

    def _report(self, progress: float, train_loss: float) -> None:
        held_out = self.evaluate()
        entry = {"step": self.done.steps, "tokens": self.done.tokens, "train": train_loss, **held_out}
        self.done.losses.append({name: round(value, 4) for name, value in entry.items()})
        done = f"step {self.done.steps} {self.done.tokens / 1e6:.1f} M tokens {self.done.seconds:.0f} s"
        losses = " ".join(f"{name} {loss:.3f}" for name, loss in held_out.items())
        print(f"{progress:6.1%} {done} train {train_loss:.3f} held-out {losses}", flush=True)

    def save_state(self) -> None:
        """Save everything needed to continue later."""
        path: Path = self.arguments.state
        unfinished = path.with_suffix(".part")
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save({"model": self.model.state_dict(), "optimizers": optimizers, "done": self.done}, unfinished)
        unfinished.replace(path)

    def load_state(self) -> None:
        """Continue an earlier run. From there, batches are drawn with a seed of their own."""
        state = torch.load(self.arguments.state, map_location=self.device, weights_only=False)
        self.model.load_state_dict(state["model"])
        for optimizer, stored in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(stored)
        self.done = state["done"]
        self.batches = Batches(
            self.batches.chat.documents, self.micro_tokens, self.arguments.seed + self.done.steps
        )

    def record(self, corpus: dict[str, object]) -> dict[str, object]:
        """Return the record of the run."""
        held_out = self.evaluate()
        device = (
            torch.cuda.get_device_name()
            if self.device.type == "cuda"
            else f"CPU, {torch.get_num_threads()} threads"
        )
        return {
            "parameters": self.model.parameter_count(),
            "architecture": self.model.shape.as_config(),
            "device": f"{device} ({platform.machine()})",
            "torch": torch.__version__,
            "seed": self.arguments.seed,
            "steps": self.done.steps,
            "tokens_seen": self.done.tokens,
            "tokens_per_step": self.micro_tokens * self.micro_batches,
            "seconds": round(self.done.seconds),
            "passes_over_corpus": self.batches.passes(),
            "peak_rate": self.arguments.rate,
            "held_out_loss": {name: round(value, 4) for name, value in held_out.items()},
            "held_out_perplexity": {name: round(math.exp(value), 3) for name, value in held_out.items()},
            "losses": self.done.losses,
            "corpus": corpus,
        }


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--corpus", type=Path, default=Path("demo/training/.corpus"), help="folder that corpus.py wrote"
    )
    parser.add_argument("--out", type=Path, default=Path("demo/model"), help="checkpoint folder")
    parser.add_argument("--record", type=Path, default=Path("demo/training/record.json"))
    parser.add_argument("--minutes", type=float, default=180.0, help="wall-clock budget")
    parser.add_argument("--steps", type=int, default=1_000_000, help="budget in steps; the smaller budget counts")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--rate", type=float, default=8e-3, help="peak learning rate")
    parser.add_argument("--step-tokens", type=int, help="tokens for one step of the optimizer")
    parser.add_argument("--micro-tokens", type=int, help="tokens computed at once")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--state", type=Path, help="file that keeps an unfinished run")
    parser.add_argument(
        "--finish", action="store_true", help="write the checkpoint of --state without further training"
    )
    parser.add_argument("--save-seconds", type=float, default=600.0)
    parser.add_argument("--report-seconds", type=float, default=120.0)
    return parser.parse_args()


def main() -> None:
    """Train, then write checkpoint and record."""
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    documents, _, corpus = load(arguments.corpus)
    trainer = Trainer(documents, arguments)
    print(f"{trainer.model.parameter_count()} parameters on {trainer.device}", flush=True)
    if arguments.state and arguments.state.exists():
        trainer.load_state()
    if not arguments.finish:
        trainer.run()
    save_checkpoint(trainer.model, arguments.corpus, arguments.out)
    arguments.record.write_text(json.dumps(trainer.record(corpus), indent=2) + "\n")


if __name__ == "__main__":
    main()
