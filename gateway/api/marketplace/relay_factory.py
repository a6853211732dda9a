"""The relay of a marketplace: for sellers registered there, with the keys that it knows of them."""

from collections.abc import Callable

from sqlalchemy import select

from gateway.api.marketplace.relay import Relay
from market.errors import NotRegistered
from market.marketplace.marketplace import Marketplace
from market.marketplace.sellers import seller_behind
from market.marketplace.statements import identities_known
from market.marketplace.tables import AllocationRow, allocation_table
from market.protocol.identity.lineage import Identities
from market.protocol.records.key_status import Standing


def relay_of(marketplace: Marketplace, is_ending: Callable[[], bool]) -> Relay:
    """Return the relay; `is_ending` tells whether the gateway is shutting down."""
    speaker = marketplace.context.speaker

    def standing(identity: str, key: str) -> Standing:
        if identity == speaker.id:
            return Identities(speaker.statements).standing(identity, key)
        with marketplace.context.read() as session:
            return identities_known(session, (identity,)).standing(identity, key)

    def is_seller(identity: str) -> bool:
        with marketplace.context.read() as session:
            try:
                return seller_behind(session, identity).suspended_reason is None
            except NotRegistered:
                return False

    def accounts_of(allocation: str) -> tuple[str, ...]:
        query = select(AllocationRow).where(allocation_table.c.digest == allocation)
        with marketplace.context.read() as session:
            row = session.scalars(query).one_or_none()
            return (f"buyer:{row.buyer_user_id}", f"seller:{row.seller_user_id}") if row else ()

    return Relay(speaker.id, standing, is_seller, accounts_of, is_ending=is_ending)
