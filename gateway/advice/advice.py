"""Where a model should run: one machine, narrower weights, several machines, the pool or a provider, and why."""

from dataclasses import dataclass

from accounting.money import format_usd
from gateway.advice.break_even import BreakEven, break_even
from gateway.advice.question import CloudPrice, PoolCopy, Question
from gateway.advice.ways import Way, gib, needed_bytes, own_ways

# Narrower weights are mentioned where they give so many times the tokens.
_FASTER = 1.25


@dataclass(frozen=True, slots=True)
class Advice:
    """`best` is the way to go, None where there is none; `because` says why, and what else is worth knowing."""

    model: str
    best: Way | None
    because: tuple[str, ...]
    ways: tuple[Way, ...]
    break_even: BreakEven | None


def advise(question: Question) -> Advice:
    """Own machines first, as the gateway routes: what runs already, then what fits, then what is paid for.

    Of the ways over own machines it is the one that the cluster would go by itself: the widest weights that fit.
    """
    own, chosen = own_ways(question)
    pool, cloud = _pool(question), _cloud(question)
    own_best = next((way for way in own if way.kind == chosen), None)
    best = _best(question, own_best, pool, cloud)
    even = _break_even(question, own_best)
    because = tuple(_because(question, best, own, even))
    return Advice(question.name, best, because, (*own, pool, cloud), even)


def _best(question: Question, own: Way | None, pool: Way, cloud: Way) -> Way | None:
    """A copy that is loaded in the pool costs nothing to start; all else of the pool comes behind the cluster."""
    is_loaded = pool.is_open and any(copy.is_resident and copy.is_ready for copy in question.pool)
    if is_loaded and question.serving != question.name:
        return pool
    return next((way for way in (own, pool, cloud) if way is not None and way.is_open), None)


def _pool(question: Question) -> Way:
    ready = sorted((copy for copy in question.pool if copy.is_ready), key=lambda c: (not c.is_resident, c.load_s))
    if ready:
        best = ready[0]
        how = "has it loaded" if best.is_resident else f"has it on disk and loads it in about {best.load_s:.0f} s"
        what = f" ({best.quantization})" if best.quantization else ""
        return Way(
            "pool",
            True,
            f"{best.backend} {how} as {best.model}{what}",
            machines=tuple(copy.backend for copy in ready),
            context_tokens=best.context_tokens,
        )
    if question.pool:
        return Way("pool", False, "; ".join(map(_why_not, question.pool)))
    return Way(
        "pool",
        False,
        "no backend lists it; its server says how to get it there, such as `ollama pull`, "
        "and `millrace pool add NAME URL` takes the server in",
    )


def _why_not(copy: PoolCopy) -> str:
    return f"{copy.backend} lists it but {copy.note or 'is not ready'}"


def _cloud(question: Question) -> Way:
    offer = _cheapest(question)
    if offer is None:
        return Way("cloud", False, "cloud.models names no provider for it that has a price")
    ratio = question.cost.prompt_tokens_per_answer_token
    nano = (ratio * offer.price.prompt_nano + offer.price.completion_nano) // (ratio + 1)
    return Way("cloud", True, f"{offer.name} at ${format_usd(nano)} a million tokens", nano_per_mtok=nano)


def _cheapest(question: Question) -> CloudPrice | None:
    ratio = question.cost.prompt_tokens_per_answer_token
    return min(
        question.cloud, key=lambda each: ratio * each.price.prompt_nano + each.price.completion_nano, default=None
    )


def _break_even(question: Question, own: Way | None) -> BreakEven | None:
    offer = _cheapest(question)
    if own is None or own.plan is None or own.plan.predicted is None or offer is None:
        return None
    return break_even(question.cost, len(own.machines), own.plan.predicted, offer.name, offer.price)


def _because(question: Question, best: Way | None, own: tuple[Way, ...], even: BreakEven | None) -> list[str]:
    said = [_verdict(question, best)]
    if question.serving and question.serving != question.name and best in own:
        said.append(f"the cluster serves {question.serving} now, and would serve this in its place")
    for way in own:
        if best in own and (gain := _gain(best, way)) >= _FASTER:
            pin = f"pin {way.precision} by cluster.precision"
            said.append(f"at {way.precision} it would give {gain:.1f} times the tokens: {pin}")
    if even is not None:
        said.append(_money(question, even))
    return said


def _gain(best: Way | None, other: Way) -> float:
    """How many times the tokens another precision would give; 0 where nobody knows."""
    if best is None or best.precision == other.precision or not (best.tokens_per_s and other.tokens_per_s):
        return 0.0
    return other.tokens_per_s / best.tokens_per_s


def _verdict(question: Question, best: Way | None) -> str:
    if best is not None:
        size = "" if best.needed_bytes is None else f", {gib(best.needed_bytes)} with one full context"
        return f"{best.kind}: {best.why}{size}"
    have = sum(member.machine.memory_usable_bytes for member in question.members)
    least = ""
    if question.card is not None:
        smallest = needed_bytes(question, question.card, question.precision or "int4")
        least = f": the least it takes is {gib(smallest)}, own machines have {gib(have)} to give"
    return (
        f"nobody can serve it{least}; add a machine (`millrace token create`), a server of the pool "
        "(`millrace pool add NAME URL`) or a provider (cloud.models)"
    )


def _money(question: Question, even: BreakEven) -> str:
    own, cloud = format_usd(even.own_nano_per_mtok), format_usd(even.cloud_nano_per_mtok)
    ratio = question.cost.prompt_tokens_per_answer_token
    mix = f"a million tokens, {ratio} of a prompt for each of an answer, cost ${own} here and ${cloud} at"
    if even.tokens_per_day is None:
        return f"{mix} {even.provider}: it is cheaper there at any load that these machines can carry"
    if even.tokens_per_day == 0:
        return f"{mix} {even.provider}: it is cheaper here from the first token"
    return f"{mix} {even.provider}: it is cheaper here from {even.tokens_per_day:,} tokens a day, wear included"
