"""Asks an Ollama to load or unload a model. It is the only kind that supports this by request."""

from gateway.dialects.model_loading import Upkeep
from gateway.errors import LaneUnreachable
from gateway.lanes.base import Offer
from gateway.lanes.pool.members import Pool
from gateway.lanes.pool.queries import Asker
from gateway.lanes.pool.report import ProbeFailed
from runtime.errors import LaneFailed, LaneTimeout
from runtime.http.client import Client


def can_be_told(pool: Pool, offer: Offer) -> bool:
    backend = pool.get(offer.backend)
    return backend is not None and backend.kind == "ollama"


async def reside(pool: Pool, offer: Offer, upkeep: Upkeep, timeout_s: float) -> None:
    """Return when the backend confirms; immediately if it is not an Ollama. Raises LaneFailed."""
    backend = pool.get(offer.backend)
    if backend is None or not can_be_told(pool, offer):
        return
    keep_alive = 0 if upkeep.action == "unload" else upkeep.keep_alive
    body = {"model": offer.served_as or offer.model}
    more = {} if keep_alive is None else {"keep_alive": keep_alive}
    # Loading takes minutes, so it does not use a probe's connection.
    client = Client(1)
    try:
        reply = await Asker(client, backend.settings.base_url, backend.headers, timeout_s).post(
            "/api/generate", body | more
        )
    except ProbeFailed as failed:
        raise _failure(offer, failed) from None
    finally:
        await client.close()
        pool.doubt(offer.backend)  # the next probe soon shows what is loaded, or why it failed
    if reply.status != 200:
        raise LaneFailed(f"{offer.label} answers {reply.status} to a request to {upkeep.action} {offer.model}")


def _failure(offer: Offer, failed: ProbeFailed) -> LaneFailed:
    text = f"{offer.label} {failed.note}"
    if failed.problem == "timeout":
        return LaneTimeout(text)
    return LaneUnreachable(text) if failed.problem == "unreachable" else LaneFailed(text)
