"""What follows a request: what it had taken is given back, routing learns of it, the books get to know."""

from accounting.money import charge
from gateway.errors import EXPECTED, to_api_error
from gateway.journey.trip import Ending, Trip
from gateway.lanes.base import Meter
from gateway.services import Services


def report(trip: Trip, meter: Meter, ending: Ending) -> None:
    """What routing learns of the backend, where one was asked."""
    dispatch = trip.dispatch
    if dispatch is None:
        return
    if ending.outcome == "complete":
        dispatch.succeeded(meter.completion_tokens, None if meter.source == "estimate" else meter.cached_tokens)
    elif ending.outcome == "failed" and ending.status == 200:
        dispatch.failed()
    else:
        dispatch.left()


def settle(services: Services, trip: Trip, meter: Meter, ending: Ending) -> None:
    """Give back what the request had taken, and write down what came of it."""
    if trip.has_place:
        services.admission.leave()
    if trip.turn is not None:
        services.turns.leave(trip.turn)
        trip.turn = None
    if trip.ticket:
        # What was found needed nobody's work: it counts as a request, and as no tokens.
        tokens = 0 if trip.found else meter.prompt_tokens + meter.completion_tokens
        spent_nano = _spent_nano(trip, meter) if trip.hold else 0
        is_served = ending.outcome != "refused" and trip.first_byte_s is not None
        trip.ticket.leave(tokens, spent_nano, is_served=is_served)
    services.bookkeeper.settle(trip, meter, ending)


def refusal(error: BaseException) -> Ending:
    """How a request ended that got no answer; 499 is what others log for a caller who hung up."""
    if not isinstance(error, Exception):
        return Ending(499, "interrupted")
    status = to_api_error(error).status
    problem = str(error) if isinstance(error, EXPECTED) else type(error).__name__
    return Ending(status, "refused" if status < 500 else "failed", problem)


def _spent_nano(trip: Trip, meter: Meter) -> int:
    """Nothing delivered, nothing charged; and own machines charge nothing."""
    price = trip.offer.price if trip.offer else None
    if price is None or not meter.completion_tokens:
        return 0
    counts = (meter.prompt_tokens, meter.cached_tokens, meter.completion_tokens)
    return charge(price.price_for(meter.prompt_tokens), *counts)
