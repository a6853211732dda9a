"""The versions of every price, and charges that differ from them; beside a running gateway or without one."""

from accounting.metering.recharge import Mischarge, mischarges
from accounting.metering.versions import PriceVersion, versions_now, versions_of
from gateway.admin.authority import Authority


def prices_at(authority: Authority, time_ns: int, model: str | None = None) -> list[PriceVersion]:
    """Return the prices that were in force then, of all models or of one."""
    with authority.directory.read() as session:
        return [each for each in versions_now(session, time_ns) if model in (None, each.name)]


def prices_of(authority: Authority, model: str) -> list[PriceVersion]:
    """Return a model's prices, newest first."""
    with authority.directory.read() as session:
        return versions_of(session, model)


def wrong_charges(authority: Authority, since_ns: int) -> list[Mischarge]:
    """Compute every charge since then from its price and counts again; return those that differ."""
    with authority.directory.read() as session:
        return mischarges(session, since_ns=since_ns)
