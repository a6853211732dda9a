"""Aliases and prices that operators set at run time; they override the settings, in all gateways."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import structlog
from sqlalchemy import delete, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.money import Nano, Price
from gateway.billing.metering.factory import write_versions
from gateway.identity import audit
from gateway.identity.audit import Actor
from gateway.identity.races import refusing_what_others_did
from gateway.lanes.aliases import Aliases
from gateway.lanes.base import Lane
from gateway.lanes.cloud.lane import CloudLane
from gateway.lanes.pool.lane import PoolLane
from gateway.lanes.tables import alias_table, own_price_table
from gateway.settings import LaneName
from runtime.errors import NotFound, RequestInvalid

log = structlog.get_logger(__name__)

# Another gateway of the same database sees a change within this time.
LOOK_EVERY_S = 5.0
ALIASES_MAX = 500


@dataclass(frozen=True, slots=True)
class Alias:
    """`models` in order of preference; `actor` is the setter's name in the audit log.

    An alias of the settings has neither `since_ns` nor `actor`.
    """

    alias: str
    models: tuple[str, ...]
    since_ns: int | None = None
    actor: str = ""


@dataclass(frozen=True, slots=True)
class OwnPrice:
    """The price of a million tokens, in nano-USD. Cached tokens cost the same, as with prices of the settings."""

    model: str
    prompt_nano: Nano
    completion_nano: Nano
    since_ns: int
    actor: str

    @property
    def price(self) -> Price:
        return Price(self.prompt_nano, self.prompt_nano, self.completion_nano)


@dataclass(frozen=True, slots=True)
class Terms:
    """All aliases and prices, by name."""

    aliases: tuple[Alias, ...] = ()
    prices: tuple[OwnPrice, ...] = ()


class ModelTerms:
    """Stored in the database, so that they survive restarts. `lanes` contains at least the pool's lane."""

    def __init__(
        self,
        read: Callable[[], Session],
        write: Callable[[], Session],
        lanes: Mapping[LaneName, Lane],
    ) -> None:
        self._read = read
        self._write = write
        pool, cloud = lanes["pool"], lanes.get("cloud")
        assert isinstance(pool, PoolLane)
        self._pool = pool
        self._cloud = cloud if isinstance(cloud, CloudLane) else None
        self._now = Terms()
        # An earlier read must not replace a later one.
        self._taking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def now(self) -> Terms:
        """The current terms. Changes by another gateway show after some seconds, own changes immediately."""
        return self._now

    def aliases(self) -> Aliases:
        """The current aliases, including those of the settings."""
        return self._pool.aliases()

    def every_alias(self) -> list[Alias]:
        """Return the current aliases, including those of the settings, by name."""
        own = {each.alias: each for each in self._now.aliases}
        return [own.get(name) or Alias(name, tuple(models)) for name, models in sorted(self.aliases().items())]

    async def start(self) -> None:
        """Read now, and then periodically. Raises SQLAlchemyError if the database is unavailable."""
        await self._look()
        self._task = asyncio.create_task(self._keep_looking(), name="model terms")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def set_alias(self, alias: Alias, by: Actor) -> None:
        """Raises RequestInvalid if there are too many, and Conflict if another admin set it at the same time."""
        await asyncio.to_thread(self._put_alias, alias, by)
        await self._look()

    async def remove_alias(self, alias: str, by: Actor) -> None:
        """Remove an alias; the one of the settings applies again. Raises NotFound."""
        await asyncio.to_thread(self._remove, "alias", alias, by)
        await self._look()

    async def set_price(self, price: OwnPrice, by: Actor) -> None:
        """Raises Conflict if another admin set it at the same time."""
        await asyncio.to_thread(self._put_price, price, by)
        await self._look()

    async def remove_price(self, model: str, by: Actor) -> None:
        """Remove a price; the one of the settings, or of the providers' list, applies again. Raises NotFound."""
        await asyncio.to_thread(self._remove, "price", model, by)
        await self._look()

    def _put_alias(self, alias_set: Alias, by: Actor) -> None:
        with refusing_what_others_did("another admin set this alias"), self._write() as session, session.begin():
            before = _alias(session, alias_set.alias)
            if before is None and _count(session) >= ALIASES_MAX:
                text = f"alias: {ALIASES_MAX} aliases are set, which is the maximum"
                raise RequestInvalid(text, param="alias")
            session.execute(delete(alias_table).where(alias_table.c.alias == alias_set.alias))
            session.execute(
                alias_table.insert().values(asdict(alias_set) | {"models": json.dumps(alias_set.models)})
            )
            _record(session, by, "alias.set", alias_set.alias, before, alias_set)

    def _put_price(self, price_set: OwnPrice, by: Actor) -> None:
        with refusing_what_others_did("another admin set this price"), self._write() as session, session.begin():
            before = _price(session, price_set.model)
            session.execute(delete(own_price_table).where(own_price_table.c.model == price_set.model))
            session.execute(own_price_table.insert().values(asdict(price_set)))
            _record(session, by, "price.set", price_set.model, before, price_set)

    def _remove(self, kind: str, name: str, by: Actor) -> None:
        with self._write() as session, session.begin():
            before = _alias(session, name) if kind == "alias" else _price(session, name)
            if before is None:
                raise NotFound(
                    f"No {kind} of {name!r} is set here. If the settings file has one, change it there."
                )
            column = alias_table.c.alias if kind == "alias" else own_price_table.c.model
            session.execute(delete(column.table).where(column == name))
            _record(session, by, f"{kind}.remove", name, before, None)

    async def _look(self) -> None:
        async with self._taking:
            found = await asyncio.to_thread(self._stored)
            if found != self._now:
                await self._take(found)

    async def _take(self, terms: Terms) -> None:
        if self._cloud and terms.prices != self._now.prices:
            book = self._cloud.book_with({each.model: each.price for each in terms.prices})
            # Record the price before any request is charged by it.
            await asyncio.to_thread(write_versions, self._cloud.prices_by(book), self._write)
            self._cloud.use(book)
        self._pool.pool.set_aliases({each.alias: each.models for each in terms.aliases})
        self._now = terms

    def _stored(self) -> Terms:
        with self._read() as session:
            aliases = session.execute(select(alias_table).order_by(alias_table.c.alias)).all()
            prices = session.execute(select(own_price_table).order_by(own_price_table.c.model)).all()
        return Terms(tuple(map(_as_alias, aliases)), tuple(OwnPrice(*row) for row in prices))

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self._look()
            except SQLAlchemyError as error:
                log.warning("aliases and prices not read", reason=type(error).__name__)


def _alias(session: Session, alias: str) -> Alias | None:
    row = session.execute(select(alias_table).where(alias_table.c.alias == alias)).one_or_none()
    return _as_alias(row) if row else None


def _price(session: Session, model: str) -> OwnPrice | None:
    row = session.execute(select(own_price_table).where(own_price_table.c.model == model)).one_or_none()
    return OwnPrice(*row) if row else None


def _as_alias(row: Any) -> Alias:
    return Alias(row.alias, tuple(json.loads(row.models)), row.since_ns, row.actor)


def _count(session: Session) -> int:
    return session.scalar(select(func.count()).select_from(alias_table)) or 0


def _record(
    session: Session,
    by: Actor,
    action: str,
    name: str,
    before: Alias | OwnPrice | None,
    after: Alias | OwnPrice | None,
) -> None:
    audit.record(
        session,
        by,
        action,
        f"model:{name}"[:200],
        before=asdict(before) if before else None,
        after=asdict(after) if after else None,
    )
