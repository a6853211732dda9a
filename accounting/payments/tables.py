"""Define the tables of payments: requests to Stripe, its messages, and the progress of each payment.

A status only moves forward (`progress`). Money is only in the ledger; these rows say what it is for.
"""

from sqlalchemy import BigInteger, Boolean, Index, Integer, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

from accounting.payments.terms import AUTO_MONTH_NANO

BigInt = BigInteger().with_variant(Integer(), "sqlite")


class Payer(SQLModel, table=True):
    """A user as a payer: the customer at Stripe, the saved method, and the automatic top-up.

    `auto_month_nano` limits automatic purchases in a UTC month, fees included. Only an admin sets `frozen_reason`;
    `frozen` knows the other reasons. Until `moving_until_ns`, credits of this user are being moved to an
    organization's balance.
    """

    __table_args__ = (Index("payer_frozen", "frozen_reason"), Index("payer_auto", "auto_below_nano"))

    user_id: str = Field(primary_key=True, sa_type=Text)
    customer_id: str | None = Field(default=None, sa_type=Text)
    method_id: str | None = Field(default=None, sa_type=Text)
    auto_below_nano: int | None = Field(default=None, sa_type=BigInt)
    auto_credit_nano: int | None = Field(default=None, sa_type=BigInt)
    auto_day_max: int = Field(default=4, sa_type=Integer)
    auto_month_nano: int = Field(default=AUTO_MONTH_NANO, sa_type=BigInt)
    auto_failures: int = Field(default=0, sa_type=Integer)
    auto_paused_until_ns: int = Field(default=0, sa_type=BigInt)
    moving_until_ns: int = Field(default=0, sa_type=BigInt)
    frozen_reason: str | None = Field(default=None, sa_type=Text)


class Topup(SQLModel, table=True):
    """Credits that a user wants to buy, by Checkout or, if `is_auto`, with the saved method."""

    __table_args__ = (
        UniqueConstraint("session_id", name="topup_session"),
        UniqueConstraint("intent_id", name="topup_intent"),
        Index("topup_user", "user_id", "created_ns"),
        Index("topup_status", "status", "updated_ns"),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    user_id: str = Field(sa_type=Text)
    credit_nano: int = Field(sa_type=BigInt)
    fee_nano: int = Field(sa_type=BigInt)
    is_auto: bool = Field(default=False, sa_type=Boolean)
    saves_method: bool = Field(default=False, sa_type=Boolean)
    status: str = Field(default="new", sa_type=Text)
    session_id: str | None = Field(default=None, sa_type=Text)
    intent_id: str | None = Field(default=None, sa_type=Text)
    url: str | None = Field(default=None, sa_type=Text)
    reason: str | None = Field(default=None, sa_type=Text)
    created_ns: int = Field(sa_type=BigInt)
    updated_ns: int = Field(sa_type=BigInt)


class TopupRefund(SQLModel, table=True):
    """Credits that are refunded to the card that paid for them."""

    __tablename__ = "topup_refund"
    __table_args__ = (
        UniqueConstraint("refund_id", name="topup_refund_stripe"),
        Index("topup_refund_topup", "topup_id"),
        Index("topup_refund_user", "user_id", "created_ns"),
        Index("topup_refund_status", "status", "updated_ns"),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    topup_id: str = Field(sa_type=Text)
    user_id: str = Field(sa_type=Text)
    amount_nano: int = Field(sa_type=BigInt)
    status: str = Field(default="new", sa_type=Text)
    refund_id: str | None = Field(default=None, sa_type=Text)
    reason: str | None = Field(default=None, sa_type=Text)
    created_ns: int = Field(sa_type=BigInt)
    updated_ns: int = Field(sa_type=BigInt)


class Dispute(SQLModel, table=True):
    """A payment that a bank took back. The id is Stripe's."""

    __tablename__ = "payment_dispute"
    __table_args__ = (Index("payment_dispute_user", "user_id"), Index("payment_dispute_status", "status"))

    id: str = Field(primary_key=True, sa_type=Text)
    topup_id: str = Field(sa_type=Text)
    user_id: str = Field(sa_type=Text)
    amount_nano: int = Field(sa_type=BigInt)
    status: str = Field(default="open", sa_type=Text)
    created_ns: int = Field(sa_type=BigInt)
    updated_ns: int = Field(sa_type=BigInt)


class SellerAccount(SQLModel, table=True):
    """A seller's account at Stripe: whether it may be paid, and since when it is this one."""

    __tablename__ = "seller_account"
    __table_args__ = (UniqueConstraint("account_id", name="seller_account_stripe"),)

    seller_id: str = Field(primary_key=True, sa_type=Text)
    account_id: str | None = Field(default=None, sa_type=Text)
    is_ready: bool = Field(default=False, sa_type=Boolean)
    changed_ns: int = Field(sa_type=BigInt)
    reason: str | None = Field(default=None, sa_type=Text)
    frozen_reason: str | None = Field(default=None, sa_type=Text)


class Payout(SQLModel, table=True):
    """A payout of a seller's earnings: to the account at Stripe and from there to the bank, in attempts."""

    __tablename__ = "seller_payout"
    __table_args__ = (
        UniqueConstraint("transfer_id", name="seller_payout_transfer"),
        Index("seller_payout_seller", "seller_id", "created_ns"),
        Index("seller_payout_status", "status", "updated_ns"),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    seller_id: str = Field(sa_type=Text)
    account_id: str = Field(sa_type=Text)
    amount_nano: int = Field(sa_type=BigInt)
    status: str = Field(default="new", sa_type=Text)
    transfer_id: str | None = Field(default=None, sa_type=Text)
    payout_id: str | None = Field(default=None, sa_type=Text)
    attempt: int = Field(default=1, sa_type=Integer)
    reason: str | None = Field(default=None, sa_type=Text)
    created_ns: int = Field(sa_type=BigInt)
    updated_ns: int = Field(sa_type=BigInt)


class StripeCall(SQLModel, table=True):
    """A call that changes something at Stripe, stored with its key before it is made."""

    __tablename__ = "stripe_call"

    key: str = Field(primary_key=True, sa_type=Text)
    resource: str = Field(sa_type=Text)
    params: str = Field(sa_type=Text)
    account: str = Field(default="", sa_type=Text)
    status: str = Field(default="sent", sa_type=Text)
    attempt: int = Field(default=1, sa_type=Integer)
    answer: str | None = Field(default=None, sa_type=Text)
    created_ns: int = Field(sa_type=BigInt)
    sent_ns: int = Field(sa_type=BigInt)


class StripeEvent(SQLModel, table=True):
    """A verified webhook of Stripe, before and after it is handled."""

    __tablename__ = "stripe_event"
    __table_args__ = (Index("stripe_event_due", "status", "due_ns"),)

    id: str = Field(primary_key=True, sa_type=Text)
    kind: str = Field(sa_type=Text)
    account: str = Field(default="", sa_type=Text)
    object_id: str = Field(sa_type=Text)
    status: str = Field(default="waiting", sa_type=Text)
    tries: int = Field(default=0, sa_type=Integer)
    due_ns: int = Field(sa_type=BigInt)
    received_ns: int = Field(sa_type=BigInt)
    reason: str | None = Field(default=None, sa_type=Text)


class StripeTxn(SQLModel, table=True):
    """A balance transaction at Stripe. Its subject equals `ref` of our events about the same thing."""

    __tablename__ = "stripe_txn"
    __table_args__ = (Index("stripe_txn_subject", "subject"), Index("stripe_txn_created", "created_ns"))

    id: str = Field(primary_key=True, sa_type=Text)
    kind: str = Field(sa_type=Text)
    subject: str = Field(sa_type=Text)
    net_nano: int = Field(sa_type=BigInt)
    created_ns: int = Field(sa_type=BigInt)


class PaymentJob(SQLModel, table=True):
    """A periodic job that one of several gateways does: who has it, and the last result.

    `details` is JSON. Two rows are no jobs: they name the mode and the account at Stripe that the ledger belongs
    to.
    """

    __tablename__ = "payment_job"

    name: str = Field(primary_key=True, sa_type=Text)
    holder: str = Field(default="", sa_type=Text)
    claimed_until_ns: int = Field(default=0, sa_type=BigInt)
    done_ns: int = Field(default=0, sa_type=BigInt)
    details: str = Field(default="{}", sa_type=Text)


payer_table = SQLModel.metadata.tables["payer"]
topup_table = SQLModel.metadata.tables["topup"]
refund_table = SQLModel.metadata.tables["topup_refund"]
dispute_table = SQLModel.metadata.tables["payment_dispute"]
account_at_stripe_table = SQLModel.metadata.tables["seller_account"]
payout_table = SQLModel.metadata.tables["seller_payout"]
stripe_event_table = SQLModel.metadata.tables["stripe_event"]
payment_job_table = SQLModel.metadata.tables["payment_job"]
stripe_call_table = SQLModel.metadata.tables["stripe_call"]
stripe_txn_table = SQLModel.metadata.tables["stripe_txn"]
