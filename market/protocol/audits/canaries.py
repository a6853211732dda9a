"""Make and check canaries: requests with known answers, which look like any other request.

They are frozen with engines that are known to be honest: where those agree, every honest seller agrees. Answers
are greedy, so the seller must serve temperature 0. A canary is used a few times and then retired, because a seller
could learn it by heart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf

from market.protocol.audits.logprobs import FIRM_NATS, TOKENS_MIN, TokenLogprob, common_tokens, distance_nats

TOKENS = 32
"""Only this many tokens of an answer are checked; the rest makes it look normal."""
FIRM_TOKENS_MIN = 4
OPENING_CHARS_MIN = 12
USES_MAX = 20
OWNERS_FAILING_MAX = 3
TOLERANCE_TIMES = 5.0
"""Honest engines, too, were up to three times as far away as those that a canary was frozen with."""
_TOLERANCE_NATS_MIN = 0.001
_DISTANCE_NATS_MAX = 0.25


@dataclass(frozen=True, slots=True)
class Canary:
    """`opening` is how every honest answer begins, `reference` how the model's own tokens continue.

    If `is_whole`, the opening is the whole answer: a seller that pads answers or cuts them short fails.
    `tolerance_nats` is the allowed distance of an honest engine's log-probabilities, in the mean of a token.
    `margin_nats` is the distance to the next best opening, and at least `firm_nats`. If it is small, coarse
    weights choose another opening. So the canaries with the smallest margins are best for sellers that report no
    probabilities.
    """

    id: str
    prompt: str
    prompt_tokens: int
    opening: str
    reference: tuple[TokenLogprob, ...]
    tolerance_nats: float
    margin_nats: float
    is_whole: bool = False
    firm_nats: float = FIRM_NATS


def freeze(
    id_: str, prompt: str, prompt_tokens: int, runs: Sequence[Sequence[TokenLogprob]], firm_nats: float = FIRM_NATS
) -> Canary | None:
    """Make a canary from the answers of honest engines, the most exact one first.

    Answers shorter than `TOKENS` count as whole, so pass only answers that the engines ended themselves.

    Return None if they agree on too few tokens, or if they differ too much: any answer would then pass.
    """
    reference = tuple(runs[0][:TOKENS])
    agreed = min((common_tokens(reference, run) for run in runs[1:]), default=len(reference))
    firm = list(takewhile(lambda each: each.margin >= firm_nats, reference[:agreed]))
    distances = [distance_nats(reference, run, firm_nats) for run in runs[1:]]
    if len(firm) < FIRM_TOKENS_MIN or any(each is None or each > _DISTANCE_NATS_MAX for each in distances):
        return None
    opening, margin_nats = "".join(each.token for each in firm), min(each.margin for each in firm)
    apart = max((each for each in distances if each is not None), default=0.0)
    tolerance_nats = max(_TOLERANCE_NATS_MIN, TOLERANCE_TIMES * apart)
    is_whole = len(firm) == len(reference) < TOKENS and all(len(run) == len(firm) for run in runs)
    tolerances = tolerance_nats, margin_nats, is_whole, firm_nats
    return Canary(id_, prompt, prompt_tokens, opening, reference, *tolerances)


def freeze_texts(id_: str, prompt: str, prompt_tokens: int, texts: Sequence[str]) -> Canary | None:
    """Make a canary from only the texts of two or more honest engines that ended by themselves.

    The opening is what they agree on, up to the end of a word. Return None if that is too little.
    """
    plain = [text.strip() for text in texts]
    is_whole = len(set(plain)) == 1
    alike = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*plain, strict=False)))
    opening = plain[0] if is_whole else plain[0][:alike].rpartition(" ")[0]
    if len(plain) < 2 or len(opening) < OPENING_CHARS_MIN:
        return None
    return Canary(id_, prompt, prompt_tokens, opening, (), inf, 0.0, is_whole)


def failings(canary: Canary, text: str, logprobs: Sequence[TokenLogprob]) -> tuple[str, ...]:
    """Return what is wrong with an answer, in words; empty if it passes.

    `logprobs` is empty if there are no tokens.
    """
    return tuple(_failings(canary, text, logprobs))


def _failings(canary: Canary, text: str, logprobs: Sequence[TokenLogprob]) -> Iterator[str]:
    # Chat templates may add spaces at either end.
    if not text.strip().startswith(canary.opening.strip()):
        yield "the answer begins differently from the model's"
    elif canary.is_whole and text.strip() != canary.opening.strip():
        yield "the answer continues where the model's ends"
    has_logprobs = len(logprobs) >= TOKENS_MIN
    apart_nats = distance_nats(canary.reference, logprobs, canary.firm_nats) if has_logprobs else None
    if apart_nats is not None and apart_nats > canary.tolerance_nats:
        yield f"log-probabilities are {apart_nats:.3g} nats a token away, and {canary.tolerance_nats:.3g} is usual"
    # The reported tokens must match the text. Otherwise they were made up.
    if logprobs and not text.lstrip().startswith("".join(each.token for each in logprobs[:TOKENS_MIN]).lstrip()):
        yield "the log-probabilities belong to another text"


def is_retired(uses: int, owners_failing: int) -> bool:
    """Return whether it was used too often, or fails with too many owners and must itself be wrong."""
    return uses >= USES_MAX or owners_failing >= OWNERS_FAILING_MAX
