"""Register sellers: which of the marketplace's users an identity earns for."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from accounting.payments.rows import put_if_new
from accounting.proofs.signing_key import is_signed
from market.errors import MarketplaceRefuses, NotRegistered, StatementInvalid
from market.marketplace.context import MarketplaceContext
from market.marketplace.statements import identities_known, keep_statements, open_statements
from market.marketplace.tables import Seller, SellerIdentity, identity_table
from market.protocol.records.envelope import open_record

IDENTITIES_MAX = 8
"""Most identities of one user.

Probation, caps and earnings belong to the user, so more identities gain nothing.
"""
_DOMAIN = b"millrace seller\n"


def proof_message(marketplace: str, user_id: str) -> bytes:
    """Return what an identity signs to earn for this user of this marketplace.

    It proves nothing at another marketplace.
    """
    return _DOMAIN + marketplace.encode() + b"\n" + user_id.encode()


@dataclass(frozen=True, slots=True)
class SellerRegistry:
    context: MarketplaceContext

    def register(self, user_id: str, identity: str, key: str, proof: str, statements: Sequence[bytes]) -> None:
        """Let an identity earn for a user. Repeating it changes nothing.

        `proof` is the signature over `proof_message` by `key`, which must be the identity's current key. All are
        in hex.

        Raises:
            RecordInvalid, IdentityInvalid, StatementInvalid: the signatures do not prove this.
            MarketplaceRefuses: the identity earns for another user, or the user has too many.
        """
        opened = open_statements(statements, (identity,))
        with self.context.write() as session, session.begin():
            exchanged = map(open_record, self.context.statements_of(identity))
            known = identities_known(session, (identity,), (*opened, *exchanged))
            if known.standing(identity, key) != "current":
                raise StatementInvalid("the key is not this identity's current key")
            message = proof_message(self.context.speaker.id, user_id)
            if not is_signed(bytes.fromhex(key), bytes.fromhex(proof), message):
                raise StatementInvalid("the proof is not this key's signature over this marketplace and account")
            keep_statements(session, opened)
            self._put(session, user_id, identity)

    def _put(self, session: Session, user_id: str, identity: str) -> None:
        now_ns = self.context.clock_ns()
        put_if_new(session, Seller(user_id=user_id, registered_ns=now_ns))
        session.get_one(Seller, user_id, with_for_update=True)
        put_if_new(session, SellerIdentity(identity=identity, user_id=user_id, registered_ns=now_ns))
        if session.get_one(SellerIdentity, identity).user_id != user_id:
            raise MarketplaceRefuses("identity_taken", "this identity earns for another account")
        count = select(func.count()).where(identity_table.c.user_id == user_id)
        if (session.scalar(count) or 0) > IDENTITIES_MAX:
            raise MarketplaceRefuses(
                "too_many_identities", f"an account may sell as at most {IDENTITIES_MAX} identities"
            )

    def identities_of(self, user_id: str) -> list[str]:
        with self.context.read() as session:
            query = select(identity_table.c.identity).where(identity_table.c.user_id == user_id)
            return sorted(session.scalars(query))

    def identities(self) -> frozenset[str]:
        """Return all identities that sell here."""
        with self.context.read() as session:
            return frozenset(session.scalars(select(identity_table.c.identity)))

    def suspended_reason(self, user_id: str) -> str | None:
        """Return why a seller is suspended; None for others."""
        with self.context.read() as session:
            seller = session.get(Seller, user_id)
            return seller.suspended_reason if seller else None

    def suspend(self, user_id: str, why: str | None) -> None:
        """Stop allocations to a seller and the maturing of its earnings until an admin has examined it. None ends
        that.

        A forfeiture stays: such a seller earns nothing more.

        Raises:
            NotRegistered: the user sells nothing here.
        """
        with self.context.write() as session, session.begin():
            seller = session.get(Seller, user_id, with_for_update=True)
            if seller is None:
                raise NotRegistered(f"{user_id} sells nothing here")
            seller.suspended_reason = why


def seller_behind(session: Session, identity: str) -> Seller:
    """Return the user whom an identity earns for. Raises NotRegistered."""
    found = session.get(SellerIdentity, identity)
    if found is None:
        raise NotRegistered(f"no seller with identity {identity} is registered here")
    return session.get_one(Seller, found.user_id)
