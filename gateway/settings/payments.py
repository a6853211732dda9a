"""Payments through Stripe: the account and the terms."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from accounting.errors import AmountInvalid
from accounting.money import parse_usd
from runtime.settings import Section, WholePath

_KEYS = ("sk_test_", "rk_test_", "sk_live_", "rk_live_")
_CENT_NANO = 10**7


class PaymentsSettings(Section):
    secret_key: SecretStr | None = Field(
        None,
        description=(
            "Stripe's secret or restricted key; it decides between test mode and live. Without it, payments are off."
        ),
    )
    secret_key_file: WholePath | None = Field(
        None, description="File with that key, mode 0600, instead of the key itself."
    )
    webhook_secrets: tuple[SecretStr, ...] = Field(
        (),
        max_length=8,
        description=(
            "Signing secrets of the endpoint for events of our own account: the current one, and old ones."
        ),
        examples=['["whsec_new", "whsec_old"]'],
    )
    connect_webhook_secrets: tuple[SecretStr, ...] = Field(
        (),
        max_length=8,
        description="Signing secrets of the endpoint for events of sellers' accounts.",
        examples=['["whsec_new", "whsec_old"]'],
    )
    # ASCII only: pydantic's pattern of 60 Unicode letters takes 6 MB and a 40th of the start.
    account_id: str | None = Field(
        None, pattern=r"^acct_[A-Za-z0-9_]{1,60}$", description="ID of our own account at Stripe."
    )
    success_url: str | None = Field(
        None,
        description="Page after a payment at Stripe; the console by default. It posts nothing.",
    )
    cancel_url: str | None = Field(None, description="Page after a cancelled payment; the console by default.")
    onboarding_url: str | None = Field(
        None, description="Page after a seller's onboarding; their earnings in the console by default."
    )
    topup_amounts_usd: tuple[str, ...] = Field(
        ("5", "10", "25", "50", "100"),
        min_length=1,
        max_length=20,
        description="Amounts of credits on offer, in USD, as text.",
        examples=['["5", "10", "25"]'],
    )
    fee_bps: int = Field(550, ge=0, le=10_000, description="Fee of a top-up, in hundredths of a percent.")
    fee_min_usd: str = Field("0.80", description="Minimum fee of a top-up, in USD, as text.")
    payout_min_usd: str = Field("10", description="Minimum payout of a seller, in USD, as text.")
    payout_day_max_usd: str = Field("1000", description="Maximum payout of a seller in a day, in USD, as text.")
    payout_schedule: Literal["off", "daily", "weekly"] = Field(
        "off", description="Schedule of automatic payouts of available earnings; weekly is on Mondays."
    )
    account_rest_h: int = Field(
        72, ge=0, le=24 * 30, description="Time without payouts after a change of a seller's account, in hours."
    )
    pool_rest_days: int = Field(
        7,
        ge=0,
        le=180,
        description="Minimum age of credits bought by card before a transfer to an organization balance, in days.",
    )
    daily_hour: int = Field(3, ge=0, le=23, description="Hour (UTC) from which daily tasks run.")
    tick_s: float = Field(5.0, gt=0, le=300, description="Interval of processing Stripe's messages, in seconds.")
    grace_h: float = Field(
        24.0, ge=0, le=240, description="Hours that a message may take before money counts as unmatched."
    )
    days_kept: int = Field(
        90, ge=90, le=3660, description="How long processed messages and calls are kept, in days."
    )
    base_url: str | None = Field(None, description="Base URL in place of Stripe's, for tests.")

    @field_validator("secret_key")
    @classmethod
    def _is_a_secret_key(cls, key: SecretStr | None) -> SecretStr | None:
        """Check the key; the message omits it."""
        if key is not None and not key.get_secret_value().startswith(_KEYS):
            raise ValueError(f"a secret key begins with one of {', '.join(_KEYS)}")
        return key

    @field_validator("fee_min_usd", "payout_min_usd", "payout_day_max_usd")
    @classmethod
    def _is_in_cents(cls, text: str) -> str:
        _checked_cents(text)
        return text

    @field_validator("topup_amounts_usd")
    @classmethod
    def _are_in_cents(cls, texts: Sequence[str]) -> tuple[str, ...]:
        if not all(map(_checked_cents, texts)):
            raise ValueError("must be amounts above zero")
        return tuple(texts)

    @field_validator("success_url", "cancel_url", "onboarding_url", "base_url")
    @classmethod
    def _is_an_address(cls, text: str | None) -> str | None:
        if text is not None and not text.startswith(("https://", "http://")):
            raise ValueError("must be an address that begins with https:// or http://")
        return text

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if self.secret_key is not None and self.secret_key_file is not None:
            raise ValueError("secret_key and secret_key_file: set only one of the two")
        if self.is_enabled and not self.webhook_secrets:
            raise ValueError("webhook_secrets: at least one is required to verify Stripe's messages")
        return self

    @property
    def is_enabled(self) -> bool:
        """Whether this gateway takes payments."""
        return self.secret_key is not None or self.secret_key_file is not None


def _checked_cents(text: str) -> int:
    try:
        amount_nano = parse_usd(text)
    except AmountInvalid as error:
        raise ValueError(str(error)) from None
    if amount_nano % _CENT_NANO:
        raise ValueError("must be whole cents: use at most two digits after the point")
    return amount_nano
