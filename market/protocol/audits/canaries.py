"""Make and check canaries: requests with known answers, which look like any other request.

They are frozen with engines that are known to be honest: where those agree, every honest seller agrees. Answers
are greedy, so the seller must serve temperature 0. A canary is used a few times and then retired, because a seller
could learn it by heart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from market.protocol.audits.logprobs import FIRM_NATS, GreedyToken

TOKENS = 32
"""Only this many tokens of an answer are checked; the rest makes it look normal."""
FIRM_TOKENS_MIN = 4
OPENING_CHARS_MIN = 12
USES_MAX = 20
OWNERS_FAILING_MAX = 3


@dataclass(frozen=True, slots=True)
class Canary:
    """`opening` is how every honest answer begins.

    If `is_whole`, the opening is the whole answer: a seller that pads answers or cuts them short fails.
    """

    prompt: str
    opening: str
    is_whole: bool = False


def freeze(prompt: str, runs: Sequence[Sequence[GreedyToken]]) -> Canary | None:
    """Make a canary from the answers of honest engines: the first tokens, as far as the first engine is sure of them.

    Answers shorter than `TOKENS` count as whole, so pass only answers that the engines ended themselves.
    Return None if these tokens are too few, or if another engine chose others.
    """
    first = tuple(runs[0][:TOKENS])
    firm = tuple(takewhile(lambda each: each.margin >= FIRM_NATS, first))
    if len(firm) < FIRM_TOKENS_MIN or any(_common_tokens(firm, run) < len(firm) for run in runs[1:]):
        return None
    is_whole = len(firm) == len(first) < TOKENS and all(len(run) == len(firm) for run in runs)
    return Canary(prompt, "".join(each.token for each in firm), is_whole)


def freeze_texts(prompt: str, texts: Sequence[str]) -> Canary | None:
    """Make a canary from only the texts of two or more honest engines that ended by themselves.

    The opening is what they agree on, up to the end of a word. Return None if that is too little.
    """
    plain = [text.strip() for text in texts]
    is_whole = len(set(plain)) == 1
    alike = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*plain, strict=False)))
    opening = plain[0] if is_whole else plain[0][:alike].rpartition(" ")[0]
    if len(plain) < 2 or len(opening) < OPENING_CHARS_MIN:
        return None
    return Canary(prompt, opening, is_whole)


def failings(canary: Canary, text: str) -> tuple[str, ...]:
    """Return what is wrong with an answer, in words; empty if it passes."""
    # Chat templates may add spaces at either end.
    if not text.strip().startswith(canary.opening.strip()):
        return ("the answer begins differently from the model's",)
    if canary.is_whole and text.strip() != canary.opening.strip():
        return ("the answer continues where the model's ends",)
    return ()


def is_retired(uses: int, owners_failing: int) -> bool:
    """Return whether it was used too often, or fails with too many owners and must itself be wrong."""
    return uses >= USES_MAX or owners_failing >= OWNERS_FAILING_MAX


def _common_tokens(one: Sequence[GreedyToken], other: Sequence[GreedyToken]) -> int:
    """Return the number of equal first tokens."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda both: both[0].token == both[1].token, pairs))
