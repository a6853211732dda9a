"""Sampling on the last stage: penalties, temperature, truncation, and a reproducible draw."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from cluster.compute.grammars import Grammars, Matcher
from cluster.errors import FrameInvalid
from cluster.generation import Alternative, SampledToken, Sampling

# Division by a lower temperature overflows, and would draw the likeliest token anyway.
_GREEDY_BELOW = 1e-5


@dataclass(slots=True)
class _Slot:
    """A sequence's sampling state. `history` is prompt and output if penalties need them."""

    sampling: Sampling
    history: list[int]
    prompt_tokens: int
    matcher: Matcher | None = None

    @property
    def is_plain_greedy(self) -> bool:
        """Tell whether only the likeliest token is needed."""
        sampling = self.sampling
        return (
            sampling.temperature < _GREEDY_BELOW
            and sampling.logprobs < 0
            and not sampling.logit_bias
            and not sampling.needs_history
            and self.matcher is None
        )


@dataclass(frozen=True, slots=True)
class Draw:
    """A group of rows to sample. `position` is that of the first new token; rows behind the first are drafts."""

    slot: int
    position: int
    drafts: tuple[int, ...] = ()


class Sampler:
    """Holds every open slot's sampling, and draws the next token of each row.

    The order is that of most engines: logit bias, penalties, grammar, temperature, top-k, top-p, min-p, draw.
    Presence and frequency penalties count only the output, as OpenAI defines them. The repetition penalty also
    counts the prompt, as in transformers.
    """

    def __init__(self, vocabulary: int, grammars: Grammars | None = None) -> None:
        self._vocabulary = vocabulary
        self.grammars = grammars
        self._slots: dict[int, _Slot] = {}

    def open(
        self, slot: int, sampling: Sampling, history: list[int], prompt_tokens: int, grammar: str = ""
    ) -> None:
        """Open a slot. `history` may be empty if neither sampling nor grammar needs it."""
        matcher = self._matcher(grammar, history[prompt_tokens:]) if grammar else None
        self._slots[slot] = _Slot(sampling, list(history), prompt_tokens, matcher)

    def close(self, slot: int) -> None:
        """Forget a slot, if it is open."""
        self._slots.pop(slot, None)

    def close_all(self) -> None:
        self._slots.clear()

    def sample(self, logits: Tensor, draws: list[Draw]) -> list[list[SampledToken]]:
        """Return the tokens of each group, from its 1 + len(drafts) rows of `logits` [rows, vocabulary].

        A group's tokens continue while its drafts match the drawn tokens, because the row behind a wrong draft saw
        another text. Raise FrameInvalid if a slot was never opened.
        """
        unknown = [draw.slot for draw in draws if draw.slot not in self._slots]
        if unknown:
            raise FrameInvalid(f"slot {unknown[0]} is to be sampled but was not opened")
        states = [self._slots[draw.slot] for draw in draws]
        greedy: list[int] = []
        if any(state.is_plain_greedy for state in states):
            greedy = logits.argmax(dim=-1).tolist()
        answers, row = [], 0
        for draw, state in zip(draws, states, strict=True):
            tokens: list[SampledToken] = []
            for at in range(1 + len(draw.drafts)):
                if state.is_plain_greedy:
                    token = SampledToken(greedy[row + at])
                else:
                    token = self._sample_row(logits[row + at].float(), state, draw.position + at)
                tokens.append(token)
                if token.problem or (at < len(draw.drafts) and draw.drafts[at] != token.token_id):
                    break
            answers.append(tokens)
            row += 1 + len(draw.drafts)
        return answers

    def _sample_row(self, raw: Tensor, state: _Slot, position: int) -> SampledToken:
        sampling = state.sampling
        adjusted = self._adjust(raw, state)
        allowed: Tensor | None = None
        if matcher := state.matcher:
            allowed = matcher.allowed()
            if allowed is None:
                return SampledToken(0, problem=matcher.problem)
            # Draw only from the allowed tokens: usually they are far fewer than the vocabulary.
            allowed = allowed.to(adjusted.device)
            adjusted = adjusted[allowed]
        if sampling.temperature < _GREEDY_BELOW:
            token_id = int(adjusted.argmax())
        else:
            token_id = _draw(adjusted / sampling.temperature, sampling, position)
        if matcher and allowed is not None:
            token_id = int(allowed[token_id])
            matcher.accept(token_id)
        if sampling.needs_history:
            state.history.append(token_id)
        return _report(raw, token_id, sampling.logprobs)

    def _matcher(self, grammar: str, output: list[int]) -> Matcher:
        if self.grammars is None:
            return Matcher(self._vocabulary, None, output, "this stage has no grammars")
        return self.grammars.begin(grammar, output)

    def _adjust(self, raw: Tensor, state: _Slot) -> Tensor:
        sampling = state.sampling
        if not sampling.logit_bias and not sampling.needs_history:
            return raw
        logits = raw.clone()
        for token_id, bias in sampling.logit_bias.items():
            if token_id < self._vocabulary:
                logits[token_id] += bias
        if sampling.needs_history:
            _penalize(logits, state)
        return logits


def _penalize(logits: Tensor, state: _Slot) -> None:
    sampling = state.sampling
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(state.history)), device=logits.device)
        held = logits[seen]
        logits[seen] = torch.where(
            held > 0, held / sampling.repetition_penalty, held * sampling.repetition_penalty
        )
    output = state.history[state.prompt_tokens :]
    if output and (sampling.presence_penalty or sampling.frequency_penalty):
        tokens, counts = torch.unique(torch.tensor(output, device=logits.device), return_counts=True)
        logits[tokens] -= sampling.presence_penalty + sampling.frequency_penalty * counts.to(logits.dtype)


def _draw(logits: Tensor, sampling: Sampling, position: int) -> int:
    """Draw from the truncated distribution of logits [tokens], by inverse-transform sampling. Return the index."""
    probabilities, order = torch.softmax(logits.double(), dim=-1), None
    if sampling.truncates:  # Sorting a large vocabulary takes ten times as long as everything else here.
        probabilities, order = _truncated(probabilities, sampling)
    cumulative = probabilities.cumsum(0)
    # Only the result is read: each read of a GPU's value waits for it.
    threshold = cumulative[-1:] * _uniform(sampling.seed, position)
    at = torch.searchsorted(cumulative, threshold, right=True).clamp_(max=len(probabilities) - 1)
    return int(at if order is None else order[at])


def _truncated(probabilities: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return the truncated distribution [kept], likeliest first, and its order [tokens]."""
    probabilities, order = probabilities.sort(descending=True, stable=True)
    if sampling.top_k:
        probabilities = probabilities[: sampling.top_k]
    if sampling.top_p < 1.0:
        # A token stays while the mass before it is below top_p, so that the first one always does.
        shares = probabilities / probabilities.sum()
        kept = int((shares.cumsum(0) - shares < sampling.top_p).sum())
        probabilities = probabilities[: max(1, kept)]
    if sampling.min_p > 0:
        kept = int((probabilities >= sampling.min_p * probabilities[0]).sum())
        probabilities = probabilities[: max(1, kept)]
    return probabilities, order


def _uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that depends only on seed and position: a replayed token is drawn alike."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def _report(raw: Tensor, token_id: int, alternatives: int) -> SampledToken:
    if alternatives < 0:
        return SampledToken(token_id)
    logprobs = torch.log_softmax(raw, dim=-1)
    top: tuple[Alternative, ...] = ()
    if alternatives:
        values, ids = logprobs.topk(min(alternatives, len(logprobs)))
        top = tuple(Alternative(*pair) for pair in zip(ids.tolist(), values.tolist(), strict=True))
    return SampledToken(token_id, float(logprobs[token_id]), top)
