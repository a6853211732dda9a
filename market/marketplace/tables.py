"""Define the marketplace's tables: sellers, allocations and the state of each channel. The ledger has all money.

Times are nanoseconds since 1970. Records are stored as they were signed. JSON columns have lists of them as text.
"""

from sqlalchemy import BigInteger, Index, Integer, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

BigInt = BigInteger().with_variant(Integer(), "sqlite")


class Seller(SQLModel, table=True):
    """A user of the marketplace that sells.

    Its earnings up to the transfer `matured_seq` have been stored for maturing. If `suspended_reason` is set, it
    gets no allocations, and nothing matures. After a forfeiture at `forfeited_ns` it earns nothing more, whatever
    is submitted later.
    """

    __tablename__ = "marketplace_seller"

    user_id: str = Field(primary_key=True, sa_type=Text)
    registered_ns: int = Field(sa_type=BigInt)
    matured_seq: int = Field(default=0, sa_type=BigInt)
    suspended_reason: str | None = Field(default=None, sa_type=Text)
    forfeited_ns: int | None = Field(default=None, sa_type=BigInt)


class SellerIdentity(SQLModel, table=True):
    """An identity that sells for a user. It never changes its user."""

    __tablename__ = "marketplace_identity"
    __table_args__ = (Index("marketplace_identity_user", "user_id"),)

    identity: str = Field(primary_key=True, sa_type=Text)
    user_id: str = Field(sa_type=Text)
    registered_ns: int = Field(sa_type=BigInt)


class KeyStatement(SQLModel, table=True):
    """An identity's statement about its keys: founding, rotation or revocation."""

    __tablename__ = "marketplace_statement"
    __table_args__ = (Index("marketplace_statement_issuer", "issuer"),)

    digest: str = Field(primary_key=True, sa_type=Text)
    issuer: str = Field(sa_type=Text)
    kind: str = Field(sa_type=Text)
    raw: str = Field(sa_type=Text)


class AllocationRow(SQLModel, table=True):
    """An allocation, and what is known of its channel.

    `evidence` is the few records that prove all of it. `unanswered` has the first time of each unanswered receipt.
    `decisions` has each sub-channel's lowest sum, by disputes and expired deadlines. `draws` and `drawn_nano`
    remember a lower bound of the ledger's draws, and `drawn_ns` its time. `next_check_ns` is when something due
    may be unbooked: an unanswered receipt, or a draw interrupted by a crash.
    """

    __tablename__ = "marketplace_allocation"
    __table_args__ = (
        UniqueConstraint("digest", name="marketplace_allocation_digest"),
        Index("marketplace_allocation_buyer", "buyer_user_id", "expires_ns"),
        Index("marketplace_allocation_seller", "seller_user_id", "expires_ns"),
        Index("marketplace_allocation_check", "next_check_ns"),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    digest: str = Field(sa_type=Text)
    raw: str = Field(sa_type=Text)
    buyer_user_id: str = Field(sa_type=Text)
    seller_user_id: str = Field(sa_type=Text)
    limit_nano: int = Field(sa_type=BigInt)
    fee_bps: int = Field(sa_type=Integer)
    created_ns: int = Field(sa_type=BigInt)
    expires_ns: int = Field(sa_type=BigInt)
    version: int = Field(default=0, sa_type=BigInt)
    evidence: str = Field(default="[]", sa_type=Text)
    unanswered: str = Field(default="{}", sa_type=Text)
    decisions: str = Field(default="{}", sa_type=Text)
    jobs: int = Field(default=0, sa_type=BigInt)
    draws: int = Field(default=0, sa_type=BigInt)
    drawn_nano: int = Field(default=0, sa_type=BigInt)
    drawn_ns: int = Field(default=0, sa_type=BigInt)
    next_check_ns: int | None = Field(default=None, sa_type=BigInt)


class Maturity(SQLModel, table=True):
    """Earnings that are old enough: stored once for maturing, then booked, and their reserve released later.

    They came by the transfers from `first_seq` to `last_seq`. `status` goes from `new` to `booked`, and to
    `released` once nothing is held in reserve.
    """

    __tablename__ = "marketplace_maturity"
    __table_args__ = (Index("marketplace_maturity_status", "status", "created_ns"),)

    seller_user_id: str = Field(primary_key=True, sa_type=Text)
    label: str = Field(primary_key=True, sa_type=Text)
    amount_nano: int = Field(sa_type=BigInt)
    reserve_bps: int = Field(sa_type=Integer)
    first_seq: int = Field(sa_type=BigInt)
    last_seq: int = Field(sa_type=BigInt)
    status: str = Field(default="new", sa_type=Text)
    created_ns: int = Field(sa_type=BigInt)


class Withheld(SQLModel, table=True):
    """Earnings that were old enough while their buyer's payments were disputed. They wait until that ends.

    `amount_nano` is what the sale brought. Refunds are subtracted when the earnings are freed.
    """

    __tablename__ = "marketplace_withheld"
    __table_args__ = (Index("marketplace_withheld_seller", "seller_user_id"),)

    transfer_seq: int = Field(primary_key=True, sa_type=BigInt, sa_column_kwargs={"autoincrement": False})
    seller_user_id: str = Field(sa_type=Text)
    buyer_user_id: str = Field(sa_type=Text)
    charge_id: str = Field(sa_type=Text)
    amount_nano: int = Field(sa_type=BigInt)


class DisputeRow(SQLModel, table=True):
    """A dispute about one request of a channel. Each side submits its text, by `answer_due_ns` at the latest.

    Of a shown prompt only the count is stored, never its text. `receipts` are the submitted receipts of the
    request, as a JSON list of records. `status` goes from `new` to `open` once the fee is held, and to `decided`.
    `loser` may be None.
    """

    __tablename__ = "marketplace_dispute"
    __table_args__ = (
        Index("marketplace_dispute_status", "status", "answer_due_ns"),
        Index("marketplace_dispute_buyer", "buyer_user_id", "opened_ns"),
        Index("marketplace_dispute_seller", "seller_user_id", "opened_ns"),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    allocation_digest: str = Field(sa_type=Text)
    sub_channel: int = Field(sa_type=Integer)
    seq: int = Field(sa_type=BigInt)
    buyer_user_id: str = Field(sa_type=Text)
    seller_user_id: str = Field(sa_type=Text)
    opened_by: str = Field(sa_type=Text)
    fee_nano: int = Field(sa_type=BigInt)
    status: str = Field(default="new", sa_type=Text)
    buyer_text: str | None = Field(default=None, sa_type=Text)
    seller_text: str | None = Field(default=None, sa_type=Text)
    buyer_prompt_tokens: int | None = Field(default=None, sa_type=BigInt)
    seller_prompt_tokens: int | None = Field(default=None, sa_type=BigInt)
    receipts: str | None = Field(default=None, sa_type=Text)
    opened_ns: int = Field(sa_type=BigInt)
    answer_due_ns: int = Field(sa_type=BigInt)
    reason: str | None = Field(default=None, sa_type=Text)
    loser: str | None = Field(default=None, sa_type=Text)
    amount_nano: int | None = Field(default=None, sa_type=BigInt)


seller_table = SQLModel.metadata.tables["marketplace_seller"]
identity_table = SQLModel.metadata.tables["marketplace_identity"]
statement_table = SQLModel.metadata.tables["marketplace_statement"]
allocation_table = SQLModel.metadata.tables["marketplace_allocation"]
dispute_table = SQLModel.metadata.tables["marketplace_dispute"]
maturity_table = SQLModel.metadata.tables["marketplace_maturity"]
withheld_table = SQLModel.metadata.tables["marketplace_withheld"]
