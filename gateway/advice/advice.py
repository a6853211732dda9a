"""Advice on where a model should run: one machine, lower precision, several machines, the pool or a provider."""

from dataclasses import dataclass

from accounting.money import format_usd
from gateway.advice.break_even import BreakEven, break_even
from gateway.advice.question import AdviceQuestion, CloudPrice, PoolCopy
from gateway.advice.ways import ServingOption, gib, needed_bytes, own_ways

# Lower precision is mentioned if it gives at least this many times the tokens.
_FASTER = 1.25


@dataclass(frozen=True, slots=True)
class Advice:
    """`best` is the recommended way, None if there is none.

    `because` gives the reasons, and other useful facts.
    """

    model: str
    best: ServingOption | None
    because: tuple[str, ...]
    ways: tuple[ServingOption, ...]
    break_even: BreakEven | None


def advise(question: AdviceQuestion) -> Advice:
    """Return advice. Own machines come first, as in routing: what runs already, then what fits, then paid ways.

    Of the ways on own machines it recommends the one that the cluster would choose: the highest precision that
    fits.
    """
    own, chosen = own_ways(question)
    pool, cloud = _pool(question), _cloud(question)
    own_best = next((way for way in own if way.kind == chosen), None)
    best = _best(question, own_best, pool, cloud)
    even = _break_even(question, own_best)
    because = tuple(_because(question, best, own, even))
    return Advice(question.name, best, because, (*own, pool, cloud), even)


def _best(
    question: AdviceQuestion, own: ServingOption | None, pool: ServingOption, cloud: ServingOption
) -> ServingOption | None:
    """Prefer a copy loaded in the pool, which costs nothing to start; other pool copies come after the cluster."""
    is_loaded = pool.is_open and any(copy.is_resident and copy.is_ready for copy in question.pool)
    if is_loaded and question.serving != question.name:
        return pool
    return next((way for way in (own, pool, cloud) if way is not None and way.is_open), None)


def _pool(question: AdviceQuestion) -> ServingOption:
    ready = sorted((copy for copy in question.pool if copy.is_ready), key=lambda c: (not c.is_resident, c.load_s))
    if ready:
        best = ready[0]
        how = "has it loaded" if best.is_resident else f"has it on disk and loads it in about {best.load_s:.0f} s"
        what = f" ({best.quantization})" if best.quantization else ""
        return ServingOption(
            "pool",
            True,
            f"{best.backend} {how} as {best.model}{what}",
            machines=tuple(copy.backend for copy in ready),
            context_tokens=best.context_tokens,
        )
    if question.pool:
        return ServingOption("pool", False, "; ".join(map(_why_not, question.pool)))
    return ServingOption(
        "pool",
        False,
        "no backend lists it; pull it on a server, for example with `ollama pull`, "
        "and add the server with `millrace pool add NAME URL`",
    )


def _why_not(copy: PoolCopy) -> str:
    return f"{copy.backend} lists it but {copy.note or 'is not ready'}"


def _cloud(question: AdviceQuestion) -> ServingOption:
    offer = _cheapest(question)
    if offer is None:
        return ServingOption("cloud", False, "no provider with a price is set for it in cloud.models")
    ratio = question.cost.prompt_tokens_per_answer_token
    nano = (ratio * offer.price.prompt_nano + offer.price.completion_nano) // (ratio + 1)
    return ServingOption("cloud", True, f"{offer.name} at ${format_usd(nano)} per 1M tokens", nano_per_mtok=nano)


def _cheapest(question: AdviceQuestion) -> CloudPrice | None:
    ratio = question.cost.prompt_tokens_per_answer_token
    return min(
        question.cloud, key=lambda each: ratio * each.price.prompt_nano + each.price.completion_nano, default=None
    )


def _break_even(question: AdviceQuestion, own: ServingOption | None) -> BreakEven | None:
    offer = _cheapest(question)
    if own is None or own.plan is None or own.plan.predicted is None or offer is None:
        return None
    return break_even(question.cost, len(own.machines), own.plan.predicted, offer.name, offer.price)


def _because(
    question: AdviceQuestion, best: ServingOption | None, own: tuple[ServingOption, ...], even: BreakEven | None
) -> list[str]:
    sentences = [_verdict(question, best)]
    if question.serving and question.serving != question.name and best in own:
        sentences.append(f"the cluster serves {question.serving} now and would serve this model instead")
    for way in own:
        if best in own and (gain := _gain(best, way)) >= _FASTER:
            pin = f"set cluster.precision to {way.precision}"
            sentences.append(f"at {way.precision} it would give {gain:.1f} times the tokens: {pin}")
    if even is not None:
        sentences.append(_money(question, even))
    return sentences


def _gain(best: ServingOption | None, other: ServingOption) -> float:
    """Return how many times the tokens another precision would give; 0 if unknown."""
    if best is None or best.precision == other.precision or not (best.tokens_per_s and other.tokens_per_s):
        return 0.0
    return other.tokens_per_s / best.tokens_per_s


def _verdict(question: AdviceQuestion, best: ServingOption | None) -> str:
    if best is not None:
        size = "" if best.needed_bytes is None else f", {gib(best.needed_bytes)} with one full context"
        return f"{best.kind}: {best.why}{size}"
    have = sum(member.machine.memory_usable_bytes for member in question.members)
    least = ""
    if question.card is not None:
        smallest = needed_bytes(question, question.card, question.precision or "int4")
        least = f": it needs at least {gib(smallest)}, and your machines have {gib(have)} available"
    return (
        f"no machine, server or provider can serve it{least}. Add a machine (`millrace token create`), a server "
        "(`millrace pool add NAME URL`) or a provider (cloud.models)"
    )


def _money(question: AdviceQuestion, even: BreakEven) -> str:
    own, cloud = format_usd(even.own_nano_per_mtok), format_usd(even.cloud_nano_per_mtok)
    ratio = question.cost.prompt_tokens_per_answer_token
    mix = f"1M tokens ({ratio} prompt tokens per answer token) cost ${own} here and ${cloud} at"
    if even.tokens_per_day is None:
        return f"{mix} {even.provider}, which is cheaper at any load that these machines can serve"
    if even.tokens_per_day == 0:
        return f"{mix} {even.provider}. Your machines are cheaper from the first token"
    return f"{mix} {even.provider}. With wear, your machines are cheaper from {even.tokens_per_day:,} tokens a day"
