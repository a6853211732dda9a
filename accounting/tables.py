"""Define the tables of the ledger: accounts with their running totals, events, transfers, usage and credit grants.

Events, transfers, usage rows and grants are append-only. An account's totals change only by a transfer that
touches it. Triggers enforce both on SQLite and on PostgreSQL (migrations/first_schema), so neither a bug nor a
manual SQL statement can rewrite the past. The one writer assigns the numbers (`id`, `seq`) without gaps, in the
order of commits.

Options for PostgreSQL alone, such as the rows that a partial index covers, are in the migrations, which create the
tables. Declaring them here would import that dialect (2 MB) even if the ledger is on SQLite.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Index,
    Integer,
    LargeBinary,
    Text,
    UniqueConstraint,
    text,
)
from sqlmodel import Field, SQLModel

BigInt = BigInteger().with_variant(Integer(), "sqlite")
Flag = Boolean().with_variant(Integer(), "sqlite")

_GIVEN = {"autoincrement": False}


class Account(SQLModel, table=True):
    """An account: its properties, fixed when it is opened, and its totals in its currency's smallest unit.

    The balance of an account whose normal side is D is `debits_posted - credits_posted`. The pending totals are
    what open holds would move.
    """

    __table_args__ = (
        UniqueConstraint("code", name="account_code"),
        CheckConstraint("kind IN ('asset', 'liability', 'income', 'expense', 'equity')", name="account_kind"),
        CheckConstraint(
            "normal = CASE WHEN kind IN ('asset', 'expense') THEN 'D' ELSE 'C' END", name="account_normal"
        ),
        CheckConstraint(
            "debits_posted >= 0 AND credits_posted >= 0 AND debits_pending >= 0 AND credits_pending >= 0",
            name="account_totals",
        ),
        CheckConstraint(
            "NOT guarded OR (normal = 'C' AND credits_posted - debits_posted - debits_pending >= 0)"
            " OR (normal = 'D' AND debits_posted - credits_posted - credits_pending >= 0)",
            name="no_overdraft",
        ),
        {"sqlite_strict": True},
    )

    id: int = Field(primary_key=True, sa_type=BigInt, sa_column_kwargs=_GIVEN)
    code: str = Field(sa_type=Text)
    currency: str = Field(sa_type=Text)
    kind: str = Field(sa_type=Text)
    normal: str = Field(sa_type=Text)
    guarded: bool = Field(sa_type=Flag)
    debits_posted: int = Field(default=0, sa_type=BigInt)
    credits_posted: int = Field(default=0, sa_type=BigInt)
    debits_pending: int = Field(default=0, sa_type=BigInt)
    credits_pending: int = Field(default=0, sa_type=BigInt)
    applied_seq: int = Field(default=0, sa_type=BigInt)
    """The last transfer that touched the account. It only grows, so a forged total is noticed."""


class Event(SQLModel, table=True):
    """One business event. Its originator chose the key that finds it again."""

    __table_args__ = (
        UniqueConstraint("idem_key", name="event_idem_key"),
        {"sqlite_strict": True},
    )

    seq: int = Field(primary_key=True, sa_type=BigInt, sa_column_kwargs=_GIVEN)
    idem_key: str = Field(sa_type=Text)
    kind: str = Field(sa_type=Text)
    req_hash: bytes = Field(sa_type=LargeBinary)
    ref: str = Field(sa_type=Text)
    created_ns: int = Field(sa_type=BigInt)
    meta: str = Field(default="{}", sa_type=Text)


class Transfer(SQLModel, table=True):
    """One debit and one credit of the same amount, so that a transfer always balances."""

    __table_args__ = (
        UniqueConstraint("event_seq", "leg", name="transfer_event_leg"),
        CheckConstraint("debit <> credit", name="transfer_sides"),
        CheckConstraint("phase IN ('single', 'pending', 'post', 'void')", name="transfer_phase"),
        CheckConstraint("(phase IN ('post', 'void')) = (pending_seq IS NOT NULL)", name="transfer_resolves"),
        CheckConstraint("(phase = 'pending') = (expires_ns IS NOT NULL)", name="transfer_expires"),
        CheckConstraint(
            "amount >= CASE WHEN phase IN ('post', 'void') THEN 0 ELSE 1 END AND amount <= 1000000000000000",
            name="transfer_amount",
        ),
        Index("transfer_debit", "debit", "seq"),
        Index("transfer_credit", "credit", "seq"),
        Index(
            "one_resolution",
            "pending_seq",
            unique=True,
            sqlite_where=text("pending_seq IS NOT NULL"),
        ),
        Index(
            "transfer_expiry",
            "expires_ns",
            sqlite_where=text("phase = 'pending'"),
        ),
        {"sqlite_strict": True},
    )

    seq: int = Field(primary_key=True, sa_type=BigInt, sa_column_kwargs=_GIVEN)
    event_seq: int = Field(sa_type=BigInt, foreign_key="event.seq")
    leg: int = Field(sa_type=Integer)
    debit: int = Field(sa_type=BigInt, foreign_key="account.id")
    credit: int = Field(sa_type=BigInt, foreign_key="account.id")
    amount: int = Field(sa_type=BigInt)
    phase: str = Field(sa_type=Text)
    pending_seq: int | None = Field(default=None, sa_type=BigInt, foreign_key="transfer.seq")
    expires_ns: int | None = Field(default=None, sa_type=BigInt)


class Usage(SQLModel, table=True):
    """One request's use and cost: `accounting.ledger.postings.UsageRecord` as a row, with its last event.

    One event may end many requests. Its req_hash covers the counts and amounts of all of them.
    """

    __table_args__ = (
        Index("usage_started", "started_ns"),
        # Limits begin with what a key, or all of a user's keys, used before the gateway started. Users have no
        # # index of their own: with many of them it would be half as large as the rows.
        Index("usage_key", "key_id", "started_ns"),
        # Console sessions have no key and make few requests.
        Index("usage_session", "user_id", "started_ns", sqlite_where=text("key_id = ''")),
        # Proofs read which requests each event ended.
        Index("usage_event", "event_seq"),
        # Request ids grow with time, so rows written together go to the same pages.
        {"sqlite_strict": True, "sqlite_with_rowid": False},
    )

    request_id: str = Field(primary_key=True, sa_type=Text)
    user_id: str = Field(sa_type=Text)
    department: str = Field(sa_type=Text)
    key_id: str = Field(sa_type=Text)
    model: str = Field(sa_type=Text)
    lane: str = Field(sa_type=Text)
    provider: str = Field(sa_type=Text)
    prompt_tokens: int = Field(sa_type=BigInt)
    cached_tokens: int = Field(sa_type=BigInt)
    completion_tokens: int = Field(sa_type=BigInt)
    count_source: str = Field(sa_type=Text)
    outcome: str = Field(sa_type=Text)
    started_ns: int = Field(sa_type=BigInt)
    duration_ms: int = Field(sa_type=BigInt)
    ttft_ms: int | None = Field(default=None, sa_type=BigInt)
    charge_nano: int = Field(sa_type=BigInt)
    cost_nano: int = Field(sa_type=BigInt)
    compute_nano: int = Field(sa_type=BigInt)
    served_model: str | None = Field(default=None, sa_type=Text)
    reasoning_tokens: int = Field(default=0, sa_type=BigInt)
    tool_tokens: int = Field(default=0, sa_type=BigInt)
    price_id: str | None = Field(default=None, sa_type=Text)
    event_seq: int = Field(sa_type=BigInt, foreign_key="event.seq")


class CreditGrant(SQLModel, table=True):
    """Promotional credits, granted to a user once, with an expiry. Rows are append-only."""

    __tablename__ = "credit_grant"
    __table_args__ = (
        CheckConstraint("amount_nano > 0", name="credit_grant_amount"),
        CheckConstraint("scope IN ('cloud', 'market', 'all')", name="credit_grant_scope"),
        Index("credit_grant_user", "user_id", "expires_ns"),
        Index("credit_grant_expires", "expires_ns"),
        {"sqlite_strict": True},
    )

    id: str = Field(primary_key=True, sa_type=Text)
    user_id: str = Field(sa_type=Text)
    amount_nano: int = Field(sa_type=BigInt)
    scope: str = Field(default="cloud", sa_type=Text)
    reason: str = Field(default="", sa_type=Text)
    created_ns: int = Field(sa_type=BigInt)
    expires_ns: int = Field(sa_type=BigInt)


account_table = SQLModel.metadata.tables["account"]
event_table = SQLModel.metadata.tables["event"]
transfer_table = SQLModel.metadata.tables["transfer"]
usage_table = SQLModel.metadata.tables["usage"]
credit_grant_table = SQLModel.metadata.tables["credit_grant"]
