"""The ledger: accounts, events, transfers, usage and its sums, prices, promotional credits and proofs."""

import sqlalchemy as sa
from alembic import op

from migrations.first_schema.columns import BIG, FLAG, blob, integer, number, number_key, numbers, text, texts


def create() -> None:
    _create_account()
    _create_event()
    _create_transfer()
    _create_usage()
    _create_prices()
    _create_credit_grants()
    _create_proofs()


def _create_account() -> None:
    op.create_table(
        "account",
        number_key("id"),
        *texts("code", "currency", "kind", "normal"),
        sa.Column("guarded", FLAG, nullable=False),
        *numbers("debits_posted", "credits_posted", "debits_pending", "credits_pending", "applied_seq"),
        sa.UniqueConstraint("code", name="account_code"),
        sa.CheckConstraint("kind IN ('asset', 'liability', 'income', 'expense', 'equity')", name="account_kind"),
        sa.CheckConstraint(
            "normal = CASE WHEN kind IN ('asset', 'expense') THEN 'D' ELSE 'C' END", name="account_normal"
        ),
        sa.CheckConstraint(
            "debits_posted >= 0 AND credits_posted >= 0 AND debits_pending >= 0 AND credits_pending >= 0",
            name="account_totals",
        ),
        sa.CheckConstraint(
            "NOT guarded OR (normal = 'C' AND credits_posted - debits_posted - debits_pending >= 0)"
            " OR (normal = 'D' AND debits_posted - credits_posted - credits_pending >= 0)",
            name="no_overdraft",
        ),
        sqlite_strict=True,
        postgresql_with={"fillfactor": 50},
    )


def _create_event() -> None:
    op.create_table(
        "event",
        number_key("seq"),
        *texts("idem_key", "kind"),
        blob("req_hash"),
        text("ref"),
        number("created_ns"),
        text("meta"),
        sa.UniqueConstraint("idem_key", name="event_idem_key"),
        sqlite_strict=True,
    )


def _create_transfer() -> None:
    op.create_table(
        "transfer",
        number_key("seq"),
        sa.Column("event_seq", BIG, sa.ForeignKey("event.seq"), nullable=False),
        integer("leg"),
        sa.Column("debit", BIG, sa.ForeignKey("account.id"), nullable=False),
        sa.Column("credit", BIG, sa.ForeignKey("account.id"), nullable=False),
        number("amount"),
        text("phase"),
        sa.Column("pending_seq", BIG, sa.ForeignKey("transfer.seq")),
        number("expires_ns", optional=True),
        sa.UniqueConstraint("event_seq", "leg", name="transfer_event_leg"),
        sa.CheckConstraint("debit <> credit", name="transfer_sides"),
        sa.CheckConstraint("phase IN ('single', 'pending', 'post', 'void')", name="transfer_phase"),
        sa.CheckConstraint("(phase IN ('post', 'void')) = (pending_seq IS NOT NULL)", name="transfer_resolves"),
        sa.CheckConstraint("(phase = 'pending') = (expires_ns IS NOT NULL)", name="transfer_expires"),
        sa.CheckConstraint(
            "amount >= CASE WHEN phase IN ('post', 'void') THEN 0 ELSE 1 END AND amount <= 1000000000000000",
            name="transfer_amount",
        ),
        sqlite_strict=True,
    )
    op.create_index("transfer_debit", "transfer", ["debit", "seq"])
    op.create_index("transfer_credit", "transfer", ["credit", "seq"])
    for name, column, condition, unique in (
        ("one_resolution", "pending_seq", "pending_seq IS NOT NULL", True),
        ("transfer_expiry", "expires_ns", "phase = 'pending'", False),
    ):
        where = sa.text(condition)
        op.create_index(name, "transfer", [column], unique=unique, sqlite_where=where, postgresql_where=where)


def _create_usage() -> None:
    op.create_table(
        "usage",
        text("request_id", key=True),
        *texts("user_id", "department", "key_id", "model", "lane", "provider"),
        *numbers("prompt_tokens", "cached_tokens", "completion_tokens"),
        *texts("count_source", "outcome"),
        *numbers("started_ns", "duration_ms"),
        number("ttft_ms", optional=True),
        *numbers("charge_nano", "cost_nano", "compute_nano"),
        sa.Column("event_seq", BIG, sa.ForeignKey("event.seq"), nullable=False),
        text("served_model", optional=True),
        number("reasoning_tokens", default="0"),
        number("tool_tokens", default="0"),
        text("price_id", optional=True),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("usage_started", "usage", ["started_ns"])
    # After a start, limits read usage by key. That must not read a whole month.
    op.create_index("usage_key", "usage", ["key_id", "started_ns"])
    # A block reads the usage rows of its events. They are written in that order, so the index grows at its end.
    op.create_index("usage_event", "usage", ["event_seq"])
    # Requests of console sessions have no key, so the index by keys has those of all users under one value.
    sessions = sa.text("key_id = ''")
    op.create_index(
        "usage_session", "usage", ["user_id", "started_ns"], sqlite_where=sessions, postgresql_where=sessions
    )
    op.create_table(
        "usage_sum",
        text("scope", key=True),
        number_key("day"),
        *(text(name, key=True) for name in ("model", "served_model")),
        *numbers("requests", "tokens", "spend_nano"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
        # The rows of the running day change with every transaction that books requests.
        postgresql_with={"fillfactor": 50},
    )


def _create_prices() -> None:
    op.create_table(
        "price",
        text("id", key=True),
        *texts("lane", "model", "provider"),
        *numbers("prompt_nano", "cached_nano", "completion_nano"),
        *numbers("reasoning_nano", "long_above_tokens", "long_prompt_nano", optional=True),
        *numbers("long_cached_nano", "long_completion_nano", "compute_nano", optional=True),
        sqlite_strict=True,
    )
    op.create_table(
        "price_version",
        *(text(name, key=True) for name in ("lane", "name")),
        sa.Column("valid_from_ns", BIG, primary_key=True),
        sa.Column("price_id", sa.Text, sa.ForeignKey("price.id"), nullable=False),
        text("source"),
        sqlite_strict=True,
    )


def _create_credit_grants() -> None:
    op.create_table(
        "credit_grant",
        text("id", key=True),
        text("user_id"),
        number("amount_nano"),
        *texts("scope", "reason"),
        *numbers("created_ns", "expires_ns"),
        sa.CheckConstraint("amount_nano > 0", name="credit_grant_amount"),
        sa.CheckConstraint("scope IN ('cloud', 'market', 'all')", name="credit_grant_scope"),
        sqlite_strict=True,
    )
    op.create_index("credit_grant_user", "credit_grant", ["user_id", "expires_ns"])
    op.create_index("credit_grant_expires", "credit_grant", ["expires_ns"])


def _create_proofs() -> None:
    """Create signed blocks of events, chained by their hashes, and accepted breaches of the ledger's rules."""
    op.create_table("block_key", text("fingerprint", key=True), blob("public_key"), sqlite_strict=True)
    op.create_table(
        "block",
        number_key("n"),
        *numbers("from_seq", "to_seq"),
        integer("events"),
        blob("prev"),
        blob("hash"),
        number("made_ns"),
        sa.Column("signed_by", sa.Text, sa.ForeignKey("block_key.fingerprint"), nullable=False),
        blob("signature"),
        sa.UniqueConstraint("from_seq", name="block_from_seq"),
        sa.UniqueConstraint("to_seq", name="block_to_seq"),
        sa.CheckConstraint("events = to_seq - from_seq + 1 AND events BETWEEN 1 AND 1000", name="block_events"),
        sa.CheckConstraint(
            "length(prev) = 32 AND length(hash) = 32 AND length(signature) = 64", name="block_lengths"
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "accepted_violation",
        text("rule", key=True),
        text("location", key=True),
        text("reason"),
        number("accepted_ns"),
        sqlite_strict=True,
    )
