"""Requests for audits, drawn from what was frozen for the model's weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from market.protocol.audits.canaries import Canary

# Round limits, as programs use, far above what the answer needs.
_TOKENS_MAX = (256, 300, 400, 500, 512, 1024)


def sold_as(weights: str, quantization: str) -> str:
    """Return what probes are frozen for: a listing of int8 weights is not compared with bf16 of the same."""
    return f"{weights}/{quantization}"


def plain_request(model: str, prompt: str, tokens_max: int = 300) -> Mapping[str, Any]:
    """Return a greedy chat request of one message."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": tokens_max}


@dataclass(frozen=True, slots=True)
class Probe:
    """A canary for listings of the same weights and precision (`sold_as`)."""

    id: str
    sold_as: str
    canary: Canary

    def request(self, model: str, draw: int) -> Mapping[str, Any]:
        """Return a chat request with the listing's name for the model; `draw` varies what does not matter."""
        return plain_request(model, self.canary.prompt, _TOKENS_MAX[draw % len(_TOKENS_MAX)])
