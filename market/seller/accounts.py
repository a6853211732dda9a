"""Channels that buyers have here: read from the file on first use, with what runs on them now."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from market.protocol.channels.admission import Refusal
from market.protocol.channels.channel import Channel, Lane, delivered, merge, promised, settle
from market.protocol.channels.evidence import evidence, read_evidence
from market.protocol.channels.statements import TOLERANCE_PARTS, Delivery, Promise
from market.protocol.records.envelope import open_record
from market.seller.credit import Credited
from market.seller.store import Backing, LaneRecords, RecordedSale, SellingStore

FORGIVEN_TIMES = 4
"""A channel may stay behind by this many times the tolerated difference of one answer's two counts, plus 1 %."""
OPEN_MAX = 256
OPEN_LANES_MAX = 4096
"""Limits on idle channels in memory and on all their lanes, each with up to four small records.

Other channels are read again when they are used.
"""
MISSES_MAX = 16
PAUSE_S_MAX = 60.0
"""After this many requests in a row were opened and then refused, a channel is paused for a second, then twice as
long, up to this.
"""


@dataclass(eq=False)
class ChannelAccount:
    """One channel, all that is known of it, and the ceilings of what is being served on it."""

    credited: Credited
    channel: Channel
    open_ceilings: dict[int, int] = field(default_factory=dict)
    users: int = 0
    forgiven_nano: int = 0
    misses: int = 0
    """Requests in a row that were opened and then refused: unpaid work."""
    _resting_until_s: float = 0.0
    _short_nano: dict[int, int] = field(default_factory=dict)
    """The amount by which the vouchers being checked are behind, in nano-USD; forgiven once their answers
    begin.
    """

    def check_paid(self, promise: Promise) -> Refusal | None:
        """Check that a voucher admits nearly all that was delivered. Return a refusal otherwise.

        Two counts differ once in a while. A buyer that always signs for less must sign for all of it.
        """
        claim, short_nano = self._claim(promise), self._behind_nano(promise)
        if claim is None or not short_nano:
            return None
        behind_nano = self.forgiven_nano + sum(self._short_nano.values()) + short_nano
        sold_nano = settle(self.channel).amount_nano
        is_much = behind_nano > FORGIVEN_TIMES * claim.tolerance_nano + sold_nano // TOLERANCE_PARTS
        return Refusal("unpaid") if is_much else None

    def forgive(self, promise: Promise) -> None:
        """Forgive, once, what this voucher is behind by, because its answer begins."""
        self.forgiven_nano += self._short_nano.pop(promise.voucher.lane, 0)

    @property
    def quarantine(self) -> bool:
        """Return whether the channel is paused because too many of its requests were refused."""
        return time.monotonic() < self._resting_until_s

    def missed(self) -> None:
        """Count a request that was opened and then refused."""
        self.misses += 1
        if self.misses >= MISSES_MAX:
            self._resting_until_s = time.monotonic() + min(2.0 ** (self.misses - MISSES_MAX), PAUSE_S_MAX)

    def _claim(self, promise: Promise) -> Delivery | None:
        return self.channel.lanes.get(promise.voucher.lane, Lane()).claim

    def _behind_nano(self, promise: Promise) -> int:
        claim = self._claim(promise)
        return max(0, claim.amount_nano - promise.amount_nano) if claim else 0

    @contextmanager
    def admitted(self, promise: Promise) -> Generator[None]:
        """Mark the request of this voucher as being served within the block."""
        lane = promise.voucher.lane
        assert lane not in self.open_ceilings, "a lane serves one request at a time"
        self.open_ceilings[lane] = int(promise.voucher.ceiling_nano)
        self._short_nano[lane] = self._behind_nano(promise)
        try:
            yield
        finally:
            del self.open_ceilings[lane]
            self._short_nano.pop(lane, None)

    def knows(self, other: Channel) -> set[int]:
        """Merge more of the channel; return the lanes that changed."""
        before, self.channel = self.channel, merge(self.channel, other)
        return {n for n, lane in self.channel.lanes.items() if lane != before.lanes.get(n)}

    def took(self, delivery: Delivery) -> None:
        """Merge our own receipt."""
        terms = self.channel.terms
        self.knows(promised(Channel(terms), delivery.promise))
        self.knows(delivered(Channel(terms), delivery, terms.seller))

    def records(self, numbers: Iterable[int]) -> dict[int, LaneRecords]:
        """Return the records to store for these lanes."""
        return {n: self._lane_records(n, self.channel.lanes[n]) for n in numbers if n in self.channel.lanes}

    def _lane_records(self, number: int, lane: Lane) -> LaneRecords:
        raws = tuple(record.raw for record in evidence(Channel(self.channel.terms, {number: lane})))
        return LaneRecords(raws, lane.claim is None or lane.claim.receipt.is_final)


class ChannelAccounts:
    """All accounts, each at most once in memory."""

    def __init__(self, store: SellingStore) -> None:
        self._store = store
        self._accounts: OrderedDict[str, ChannelAccount] = OrderedDict()
        self._reading = asyncio.Lock()

    @asynccontextmanager
    async def using(self, credited: Credited) -> AsyncIterator[ChannelAccount]:
        """Yield a channel's account as last stored. Jobs of a channel that run at once share it.

        Raises:
            RecordInvalid, StatementInvalid: a stored signature is no longer valid, for example after a key was
                revoked.
        """
        account = await self._opened(credited)
        account.users += 1
        try:
            yield account
        finally:
            account.users -= 1
            self._forget()

    async def _opened(self, credited: Credited) -> ChannelAccount:
        name = credited.terms.channel
        async with self._reading:
            account = self._accounts.get(name)
            if account is None:
                kept = await self._store.evidence(name)
                account = ChannelAccount(credited, await asyncio.to_thread(_read, kept, credited))
                account.forgiven_nano = await self._store.forgiven_nano(name)
                self._accounts[name] = account
        account.credited = credited.knowing(account.credited)
        self._accounts.move_to_end(name)
        return account

    async def backing(self, channel: str) -> Backing | None:
        """Return a channel's backing, as its last job stated it; None if the channel was never used here."""
        account = self._accounts.get(channel)
        return account.credited.backing if account else await self._store.backing(channel)

    async def learn(self, account: ChannelAccount, raws: Iterable[bytes]) -> int:
        """Store received vouchers and receipts; return how many lanes know more than before.

        Only lanes on which something was delivered count, because others are not worth storing.

        Raises:
            RecordInvalid, StatementInvalid: a record does not belong to this channel.
        """
        credited, given = account.credited, list(raws)
        # Up to sixty signatures: check them in a thread, so that other answers need not wait.
        learned = await asyncio.to_thread(_read, given, credited)
        served = {n: lane for n, lane in learned.lanes.items() if account.channel.lanes.get(n, Lane()).claim}
        changed = account.knows(Channel(learned.terms, served))
        if changed:
            await self._keep(account, changed)
        return len(changed)

    async def keep(self, account: ChannelAccount, delivery: Delivery, sale: RecordedSale | None = None) -> None:
        """Store our own receipt; on disk when this returns."""
        account.took(delivery)
        await self._keep(account, [delivery.receipt.lane], sale)

    async def _keep(
        self, account: ChannelAccount, numbers: Iterable[int], sale: RecordedSale | None = None
    ) -> None:
        known, forgiven_nano = account.records(numbers), account.forgiven_nano
        await self._store.keep(account.credited.backing, known, sale, forgiven_nano=forgiven_nano)

    def _forget(self) -> None:
        lanes = sum(len(account.channel.lanes) for account in self._accounts.values())
        for name, account in list(self._accounts.items()):
            if len(self._accounts) <= OPEN_MAX and lanes <= OPEN_LANES_MAX:
                return
            if not account.users:
                lanes -= len(account.channel.lanes)
                del self._accounts[name]


def _read(raws: Iterable[bytes], credited: Credited) -> Channel:
    """Verify signatures and return the channel's state."""
    return read_evidence(map(open_record, raws), credited.terms, credited.standing)
