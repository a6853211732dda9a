"""What was signed on channels, on its way to the house: told until it is known there, in whatever order."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.market.bookkeeper import BookKeeper
from gateway.market.identity import OwnIdentity
from gateway.market.outbound import Unreachable
from gateway.selling.delivery import now_ms
from gateway.selling.house import House, HouseRefused
from gateway.selling.store import SellingStore, Unsubmitted
from market.channels.terms import Allocation
from market.errors import IdentityInvalid
from market.house.statements import STATEMENTS_MAX
from market.identity.connected import connected
from market.identity.statements import check_statement
from market.records.envelope import Record, open_record

log = structlog.get_logger(__name__)

AGAIN_MS = 5_000
AGAIN_MS_MAX = 3_600_000
"""A channel that the house does not take is told again after so long, then after twice as long, up to this."""
BUSY_MAX = 3
"""After so many channels in a row that the house has no time for, the others wait too."""


@dataclass(frozen=True, slots=True)
class Submitting:
    """Everything that the house has to hear about, until it has heard it; in whatever order."""

    house: House | None
    own: OwnIdentity
    store: SellingStore
    keeper: BookKeeper
    every_s: float
    pause_s_max: float = 60.0
    clock_ms: Callable[[], int] = now_ms

    async def run(self) -> None:
        """Until cancelled: with the house down or angry, what is not told is kept, and told later."""
        pause_s = 1.0
        while self.house is not None:
            try:
                await self.house.meet()
                await self._register(self.house)
                await self.submit()
            except (Unreachable, HouseRefused, IdentityInvalid, SQLAlchemyError) as error:
                log.warning("the house was not told", why=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self.pause_s_max)
            else:
                pause_s = 1.0
                await asyncio.sleep(self.every_s)

    async def _register(self, house: House) -> None:
        """What the house has against our account is the owner's to mend; what was signed is told all the same."""
        try:
            await house.register()
        except HouseRefused as error:
            log.error("the house does not register this seller", why=str(error))

    async def submit(self) -> None:
        """All there is now. A channel that the house refuses waits for its turn, and the others do not.

        Raises:
            Unreachable: the house is away.
            HouseRefused: it has no time for anybody.
        """
        busy = 0
        while self.house is not None and (waiting := await self.store.unsubmitted(self.clock_ms())):
            for channel in waiting:
                try:
                    await self._tell(self.house, channel)
                except HouseRefused as error:
                    await self._put_off(channel, error)
                    busy = busy + 1 if _is_busy(error) else 0
                    if busy == BUSY_MAX:
                        raise
                else:
                    busy = 0
                    await self.store.note_submitted(channel.backing.channel, channel.changes)

    async def _tell(self, house: House, channel: Unsubmitted) -> None:
        """The statements first, where they are more than the house takes at once: it keeps them."""
        backing = replace(channel.backing, statements=())
        told = await asyncio.to_thread(self._statements, channel)
        *before, last = _chunks(told) or [[]]
        for some in before:
            await house.submit(replace(channel, backing=backing, evidence=()), some)
        await house.submit(replace(channel, backing=backing), last)

    def _statements(self, channel: Unsubmitted) -> list[bytes]:
        """All about our keys and the buyer's on which what we believed may rest, each once and in its order."""
        buyer = open_record(channel.backing.records[0]).read("allocation", Allocation).buyer
        raws = dict.fromkeys((*channel.backing.statements, *self.keeper.statements_of(buyer)))
        theirs = connected(buyer, [each for each in map(open_record, raws) if _is_statement(each, buyer)])
        return [each.raw for each in _in_order(theirs)] + [each.raw for each in _in_order(self.own.statements)]

    async def _put_off(self, channel: Unsubmitted, error: HouseRefused) -> None:
        """A proxy may have refused, or a house that is mended by then: what was signed is worth another try."""
        pause_ms = min(AGAIN_MS << min(channel.refusals, 16), AGAIN_MS_MAX)
        name = channel.backing.channel
        log.error("the house refuses a channel", channel=name, again_in_s=pause_ms // 1000, why=str(error))
        await self.store.note_refused(name, self.clock_ms() + pause_ms)


def _is_busy(error: HouseRefused) -> bool:
    return error.status in (408, 429) or error.status >= 500


def _is_statement(record: Record, issuer: str) -> bool:
    if record.issuer != issuer or record.kind not in ("founding", "rotation", "revocation"):
        return False
    check_statement(record)
    return True


def _in_order(statements: Iterable[Record]) -> list[Record]:
    """So that each follows from those before it: what is told in parts is kept only where it is connected."""
    kinds = {"founding": 0, "rotation": 1, "revocation": 2}
    return sorted(statements, key=lambda each: (kinds[each.kind], each.revision))


def _chunks(raws: list[bytes]) -> list[list[bytes]]:
    return [raws[start : start + STATEMENTS_MAX] for start in range(0, len(raws), STATEMENTS_MAX)]
