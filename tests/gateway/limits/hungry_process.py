"""A gateway process that takes all it can of its caller's limits, for tests: run with a Redis URL, a count, and
how many seconds a lease lasts.

Each line that it reads is a step: take what a crowd of that count is given and write `served N`; have all of it
end; end in good order.
"""

import asyncio
import sys

from gateway.limits.central import Central
from gateway.limits.leases import LeaseSource
from gateway.limits.limits import Limits
from gateway.limits.ticket import Ticket
from runtime.errors import RateLimited
from tests.gateway.limits.callers import caller, quota

LIMIT = 60
WHO = caller(quota("requests", LIMIT, "day"), quota("concurrency", 200), quota("tokens", 100 * LIMIT))


async def _enter(limits: Limits) -> Ticket | None:
    try:
        return await limits.enter(WHO, "m", 100)
    except RateLimited:
        return None


async def main(url: str, count: int, lease_s: float) -> None:
    source = LeaseSource(Central(url, "test", 5.0, lease_s), lambda *_: 0)
    source.start()
    limits = Limits(source)
    print("ready", flush=True)  # noqa: T201
    await asyncio.to_thread(sys.stdin.readline)
    tickets = await asyncio.gather(*(_enter(limits) for _ in range(count)))
    print("served", sum(ticket is not None for ticket in tickets), flush=True)  # noqa: T201
    await asyncio.to_thread(sys.stdin.readline)
    for ticket in tickets:
        if ticket:
            ticket.leave(100, 0)
    await source.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
