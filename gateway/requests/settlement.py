"""Settles a request: releases its slots and holds, reports to routing and metrics, and books its usage and charge."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from msgspec import structs

from accounting.errors import LedgerError
from accounting.ledger.postings import MAX_TEXT, UsageRecord
from accounting.metering.prices import PricedModel
from accounting.money import MAX_TOKENS
from accounting.rules.held import CloudBill, Hold
from gateway.billing.bookkeeper import Bookkeeper
from gateway.billing.finished_request import NO_LANE, Bearer, Ended, Ending
from gateway.billing.recount import Recount, bill_of
from gateway.billing.spool import Settlement
from gateway.errors import EXPECTED, to_api_error
from gateway.lanes.base import Meter, Offer
from gateway.metrics.metrics import Metrics
from gateway.requests.context import RequestContext
from gateway.requests.entry import Admittance
from gateway.requests.queue_slot import QueueSlots
from gateway.routing.decision import Decision
from runtime.hang_ups import HangUps

log = structlog.get_logger(__name__)

# Sources of token counts that also know the cached part of the prompt.
_BY_BACKEND = ("upstream", "tokenizer")
# The assumed maximum number of machines that one request keeps busy.
_STAGES_MAX = 1024


@dataclass(frozen=True, slots=True)
class RequestSettler:
    """Ends requests. One event loop owns it."""

    entry: Admittance
    slots: QueueSlots
    hang_ups: HangUps
    bookkeeper: Bookkeeper
    metrics: Metrics

    def refuse(self, context: RequestContext, error: BaseException) -> None:
        """End a request without an answer."""
        if dispatch := context.dispatch:
            dispatch.left()
        self._settle(context, Meter(), refusal(error))

    def end(self, context: RequestContext, meter: Meter, ending: Ending) -> None:
        """End a request whose answer was sent, wholly or in part."""
        _report(context, meter, ending)
        observe_answer(self.metrics, context, meter)
        self._settle(context, meter, ending)

    def book(self, context: RequestContext, meter: Meter, ending: Ending) -> int:
        """Hand an ended request to the ledger and the logs; never raises.

        Return the amount that counts against its payer's budgets, in nano-USD.
        """
        return settle_request(self.bookkeeper, context, meter, ending)

    def _settle(self, context: RequestContext, meter: Meter, ending: Ending) -> None:
        """Release the request's slots and holds, and record its result."""
        self.entry.leave(context)
        self.slots.leave(context)
        admitted = context.admitted
        if (bearer := _bearer(self.hang_ups, context, meter, ending)) != "none":
            ending = structs.replace(ending, prompt=bearer)
            if not meter.prompt_tokens:
                meter.prompt_tokens = context.call.prompt_tokens
                meter.source = "characters"
        spent_nano = settle_request(self.bookkeeper, context, meter, ending)
        if ticket := admitted.ticket:
            # A cached answer needed no backend: it counts as a request without tokens.
            tokens = 0 if admitted.found else meter.prompt_tokens + meter.completion_tokens
            is_served = ending.outcome != "refused" and context.first_byte_s is not None
            ticket.leave(tokens, spent_nano, is_served=is_served or bearer != "none")


def _report(context: RequestContext, meter: Meter, ending: Ending) -> None:
    """Report the outcome to routing, if a backend was asked."""
    asked = context.asked
    if asked is None or (dispatch := asked.dispatch) is None:
        return
    if ending.outcome == "complete":
        dispatch.succeeded(meter.completion_tokens, meter.cached_tokens if meter.source in _BY_BACKEND else None)
    elif ending.outcome == "failed" and ending.status == 200:
        dispatch.failed()
    else:
        dispatch.left()


def _bearer(hang_ups: HangUps, context: RequestContext, meter: Meter, ending: Ending) -> Bearer:
    """Return the bearer of a prompt's cost if no text was delivered.

    Once the provider has begun, the caller bears it. Before that this gateway does, or the seller, for as many
    requests as a payer may leave unpaid. A failed backend is paid nothing. The buyer states what sellers are owed.
    """
    asked = context.asked
    if (
        asked is None
        or asked.offer.price is None
        or context.hold is None
        or not asked.may_charge
        or meter.completion_tokens
    ):
        return "none"
    is_bought = asked.offer.lane == "market"
    if context.first_byte_s is not None:
        return "none" if is_bought or ending.outcome == "failed" else "caller"
    if ending.outcome == "interrupted" and not context.is_left:  # this gateway is stopping
        return "none" if is_bought else "gateway"
    is_unpaid = hang_ups.take(context.caller.user_id)
    if is_bought:
        return "seller"
    return "gateway" if is_unpaid else "caller"


def refusal(error: BaseException) -> Ending:
    """The ending of a request without an answer. As in nginx, 499 means that the caller disconnected."""
    if not isinstance(error, Exception):
        return Ending(499, "interrupted")
    status = to_api_error(error).status
    problem = str(error) if isinstance(error, EXPECTED) else type(error).__name__
    return Ending(status, "refused" if status < 500 else "failed", problem)


def settle_request(bookkeeper: Bookkeeper, context: RequestContext, meter: Meter, ending: Ending) -> int:
    """Hand an ended request to the ledger and the logs; never raises.

    Return the amount that counts against its payer's budgets, in nano-USD.
    """
    try:
        return bookkeeper.settle(end(context, meter, ending))
    except LedgerError as error:
        log.error("request not settled", request_id=context.call.id, reason=str(error))
        bookkeeper.abandon(context.hold, context.lane, ending.outcome)
        return 0


def observe_answer(metrics: Metrics, context: RequestContext, meter: Meter) -> None:
    """Measure how long an answer took and how many tokens it has."""
    tallies = metrics.of_lane(context.lane)
    elapsed_s, first_byte_s, tokens = context.elapsed_s, context.first_byte_s, meter.completion_tokens
    tallies.request_seconds.observe(elapsed_s)
    if first_byte_s is not None:
        tallies.first_token_seconds.observe(first_byte_s)
        # Whole and cached answers do not show how fast they were generated.
        if tokens > 1 and context.call.request.is_stream and not context.admitted.found:
            tallies.token_seconds.observe((elapsed_s - first_byte_s) / (tokens - 1))
    tallies.prompt_tokens.value += meter.prompt_tokens
    tallies.completion_tokens.value += tokens


def end(context: RequestContext, meter: Meter, ending: Ending) -> Ended:
    """Return the record of an ended request. Raises LedgerError for values that no ledger can store."""
    offer, call = context.offer, context.call
    return Ended(
        _settlement(context, offer, meter, ending),
        call.kind,
        offer.backend if offer else context.lane,
        _continued(context) if context.continued_on else context.decision,
        ending.status,
        ending.problem,
        context.caller.key_prefix,
        call.request.is_stream,
        call.traceparent,
        call.address,
        meter.finish_reasons,
        _recount(context, offer, meter) if meter.delivered and meter.completion_tokens else None,
        None if context.decided is None else int(1000 * context.decided.at_s),
    )


def _continued(context: RequestContext) -> Decision:
    """Return the decision with the backends that continued the answer, for the request log."""
    said = "; ".join((context.decision.reason, *(f"continued on {label}" for label in context.continued_on)))
    return structs.replace(context.decision, said=said)


def _recount(context: RequestContext, offer: Offer | None, meter: Meter) -> Recount | None:
    """Return the recount of an answer. If the backend counted it, the recount is only a check."""
    if offer is None:
        return None
    is_check = meter.source == "upstream"
    price = None if is_check or context.hold is None else offer.price
    return Recount(offer.counted_as, meter.delivered, price, is_check, _correction(context) if price else None)


def _correction(context: RequestContext) -> Callable[[int], object] | None:
    """Return a function that corrects the counters; it is called on another thread than the event loop's."""
    ticket = context.admitted.ticket
    if ticket is None:
        return None
    loop = asyncio.get_running_loop()
    return lambda more_nano: loop.call_soon_threadsafe(ticket.correct, more_nano)


def _settlement(context: RequestContext, offer: Offer | None, meter: Meter, ending: Ending) -> Settlement:
    """Capture what a provider delivered, else release; without a hold only the usage row."""
    usage = _usage(context, offer, meter, ending)
    price = offer.price if offer else None
    # Own machines charge nothing.
    if context.hold is None or price is None:
        return Settlement(usage, context.hold)
    if meter.cost_nano is not None and price.lane == "market":
        return _bought(usage, context.hold, price, meter.cost_nano)
    return Settlement(usage, context.hold, bill_of(price, usage) or _prompt_bill(price, usage, ending.prompt))


def _prompt_bill(price: PricedModel, usage: UsageRecord, bearer: Bearer) -> CloudBill | None:
    """Return the provider's charge for the prompt if no text was delivered, for the bearer of that cost."""
    cost_nano = price.charge_for(usage.prompt_tokens, usage.cached_tokens, 0)
    if not cost_nano or bearer in ("none", "seller"):
        return None
    return CloudBill(price.provider, cost_nano if bearer == "caller" else 0, cost_nano, price.id)


def _bought(usage: UsageRecord, hold: Hold, price: PricedModel, cost_nano: int) -> Settlement:
    """Return the settlement of a bought answer, with the exact amount owed to sellers.

    Several sellers, or a changed price, have no single price.
    """
    if not usage.completion_tokens:
        return Settlement(usage, hold)
    usual = bill_of(price, usage)
    if usual is not None and usual.cost_nano == cost_nano:
        return Settlement(usage, hold, usual)
    return Settlement(structs.replace(usage, price_id=None), hold, CloudBill(price.provider, cost_nano, cost_nano))


def _usage(context: RequestContext, offer: Offer | None, meter: Meter, ending: Ending) -> UsageRecord:
    caller, model, outcome = context.caller, context.call.request.model, ending.outcome
    duration_s, first_byte_s = context.elapsed_s, context.first_byte_s
    prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, tool_tokens = _counts(meter)
    lane: str
    price, served_as = None, None
    if offer:
        lane, provider = offer.lane, offer.price.provider if offer.price else offer.backend
        price = offer.price if context.hold else None
        served_as = offer.served_as if first_byte_s is not None else None
    else:
        lane, provider = context.lane, NO_LANE
    compute_nano = int(duration_s * 1e9)
    if lane != "pool" or outcome not in ("complete", "interrupted"):
        # Only a pool backend does not report its compute time, so that it is the request's duration.
        compute_nano = _between(0, meter.compute_ns, compute_nano * _STAGES_MAX)
    return UsageRecord(
        context.call.id,
        caller.user_id,
        caller.department,
        caller.key_id,
        _storable(model),
        lane,
        provider,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        meter.source,
        outcome,
        context.started_ns,
        int(1000 * duration_s),
        None if first_byte_s is None else int(1000 * first_byte_s),
        0,
        0,
        compute_nano,
        None if served_as is None or served_as == model else _storable(served_as),
        reasoning_tokens,
        tool_tokens,
        price.id if price else None,
    )


def _counts(meter: Meter) -> tuple[int, int, int, int, int]:
    """Return prompt, cached, completion, reasoning and tool tokens, limited to possible values.

    Some upstreams report nonsense.
    """
    prompt, cached, completion = meter.prompt_tokens, meter.cached_tokens, meter.completion_tokens
    reasoning, tool = meter.reasoning_tokens, meter.tool_tokens
    if (
        0 <= cached <= prompt <= MAX_TOKENS
        and 0 <= reasoning <= completion <= MAX_TOKENS
        and 0 <= tool <= completion
    ):
        return prompt, cached, completion, reasoning, tool
    prompt, completion = _between(0, prompt, MAX_TOKENS), _between(0, completion, MAX_TOKENS)
    parts = (_between(0, reasoning, completion), _between(0, tool, completion))
    return prompt, _between(0, cached, prompt), completion, *parts


def _between(least: int, number: int, most: int) -> int:
    return max(least, min(number, most))


def _storable(model: str) -> str:
    """Return the requested model name, cut to a row's limit."""
    if len(model) <= MAX_TEXT and model.isascii() and "\0" not in model:
        return model
    return model[:MAX_TEXT].replace("\0", "").encode(errors="replace").decode()
