"""Requests for audits, drawn from what was frozen for the model's weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from market.protocol.audits.canaries import Canary, failings
from market.protocol.audits.logprobs import TokenLogprob
from market.protocol.audits.needle import Needle, is_found
from market.protocol.audits.sequential import Kind

# Round limits, as programs use, far above what the answer needs.
_TOKENS_MAX = (256, 300, 400, 500, 512, 1024)
_NEEDLE_TOKENS_MAX = (64, 100, 128)


def sold_as(weights: str, quantization: str) -> str:
    """Return what probes are frozen for: a listing of int8 weights is not compared with bf16 of the same."""
    return f"{weights}/{quantization}"


def plain_request(model: str, prompt: str, tokens_max: int = 300) -> Mapping[str, Any]:
    """Return a greedy chat request of one message."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": tokens_max}


@dataclass(frozen=True, slots=True)
class Probe:
    """Either a canary or a needle, for listings of the same weights and precision (`sold_as`)."""

    id: str
    sold_as: str
    canary: Canary | None = None
    needle: Needle | None = None

    @property
    def has_reference(self) -> bool:
        """Return whether log probabilities can be compared."""
        return self.canary is not None and bool(self.canary.reference)

    @property
    def kind(self) -> Literal["canary", "needle"]:
        return "canary" if self.canary else "needle"

    def request(self, model: str, draw: int) -> Mapping[str, Any]:
        """Return a chat request with the listing's name for the model; `draw` varies what does not matter."""
        limits: Sequence[int] = _TOKENS_MAX if self.kind == "canary" else _NEEDLE_TOKENS_MAX
        return plain_request(model, self._subject.prompt, limits[draw % len(limits)])

    def look(self, text: str, logprobs: Sequence[TokenLogprob]) -> tuple[Kind, tuple[str, ...]]:
        """Return the kind of audit that the answer made of it, and what was wrong."""
        subject = self._subject
        if isinstance(subject, Needle):
            found = is_found(subject, text)
            return "needle", () if found else ("the beginning of a long prompt was not known",)
        return "logprob" if logprobs else "canary", failings(subject, text, logprobs)

    @property
    def _subject(self) -> Canary | Needle:
        subject = self.canary or self.needle
        assert subject is not None, "a probe asks something"
        return subject
