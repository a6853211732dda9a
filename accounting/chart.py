"""Define the chart of accounts: which codes exist, and what an account of each kind is.

The ledger opens an account on first use from its code alone, so this table is the only definition of what
`user:ann:paid` means. It refuses an unknown code.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from accounting.errors import AccountUnknown

Kind = Literal["asset", "liability", "income", "expense"]
Normal = Literal["D", "C"]
Currency = Literal["usd-9", "cu-9"]


@dataclass(frozen=True, slots=True)
class AccountTerms:
    """The fixed properties of an account.

    `normal` is the side on which it grows. A `guarded` account never goes below zero, open holds included. `usd-9`
    is nano-USD. `cu-9` is billionths of a compute unit, this gateway's own cost of local work, and is never mixed
    with money.
    """

    kind: Kind
    guarded: bool
    currency: Currency = "usd-9"

    @property
    def normal(self) -> Normal:
        return "D" if self.kind in ("asset", "expense") else "C"


_GUARDED = True
_OPEN = False

_CHART: tuple[tuple[str, AccountTerms], ...] = (
    ("asset:(stripe|bank|stripe_in_transit|market_recv)", AccountTerms("asset", _OPEN)),
    ("asset:(user_recv|seller_recv):<id>", AccountTerms("asset", _GUARDED)),
    ("user:<id>:paid", AccountTerms("liability", _GUARDED)),
    ("user:<id>:promo:<id>", AccountTerms("liability", _GUARDED)),
    ("pool:<id>:paid", AccountTerms("liability", _GUARDED)),
    ("seller:<id>:(maturing|payable|reserve)", AccountTerms("liability", _GUARDED)),
    ("clearing:(burst|market)", AccountTerms("liability", _GUARDED)),
    ("provider:<id>:accrued", AccountTerms("liability", _OPEN)),
    ("tax:payable", AccountTerms("liability", _OPEN)),
    ("suspense", AccountTerms("liability", _OPEN)),
    ("income:(market_fee|market_sales|burst_margin|topup_fee|breakage)", AccountTerms("income", _OPEN)),
    (
        "expense:(stripe_fee|promo|dispute_fee|bad_debt|goodwill|audit|burst_variance|own_use)",
        AccountTerms("expense", _OPEN),
    ),
    ("cu:dept:<id>", AccountTerms("expense", _OPEN, "cu-9")),
    ("cu:supply:<id>", AccountTerms("income", _OPEN, "cu-9")),
)

_ID_MAX = 80
_ID = f"[A-Za-z0-9._@-]{{1,{_ID_MAX}}}"
_NOT_IN_ID = re.compile("[^A-Za-z0-9._@-]")
_PATTERNS = tuple((re.compile(code.replace("<id>", _ID)), terms) for code, terms in _CHART)

ASSET_BANK = "asset:bank"
ASSET_MARKET_RECV = "asset:market_recv"
"""The debt of an outside marketplace to us for the capacity that our machines sold on the market."""
ASSET_STRIPE = "asset:stripe"
ASSET_STRIPE_IN_TRANSIT = "asset:stripe_in_transit"
CLEARING_BURST = "clearing:burst"
CLEARING_MARKET = "clearing:market"
INCOME_MARKET_FEE = "income:market_fee"
INCOME_MARKET_SALES = "income:market_sales"
INCOME_BREAKAGE = "income:breakage"
EXPENSE_PROMO = "expense:promo"
EXPENSE_GOODWILL = "expense:goodwill"
EXPENSE_AUDIT = "expense:audit"
INCOME_BURST_MARGIN = "income:burst_margin"
EXPENSE_BURST_VARIANCE = "expense:burst_variance"
EXPENSE_OWN_USE = "expense:own_use"
"""The cost of the operators' own requests at providers that they pay with their own key."""
INCOME_TOPUP_FEE = "income:topup_fee"
EXPENSE_STRIPE_FEE = "expense:stripe_fee"
EXPENSE_DISPUTE_FEE = "expense:dispute_fee"
EXPENSE_BAD_DEBT = "expense:bad_debt"
SUSPENSE = "suspense"
"""Holds money about which Stripe and the ledger disagree, until an admin has found the cause."""


@lru_cache(maxsize=1024)
def terms_of(code: str) -> AccountTerms:
    """Return the properties of an account with this code.

    Raises:
        AccountUnknown: the chart has no such code, or an id in it has characters other than letters, digits
            and `._@-`.
    """
    for pattern, terms in _PATTERNS:
        if pattern.fullmatch(code):
            return terms
    raise AccountUnknown(code)


def user_paid(user_id: str) -> str:
    """Return the account of a user's prepaid credits."""
    return f"user:{user_id}:paid"


def user_receivable(user_id: str) -> str:
    """Return the account of what a user owes us: text delivered after the hold that covered it was gone."""
    return f"asset:user_recv:{user_id}"


def debtor_of(code: str) -> str:
    """Return the user who owes what a receivable's code names, or "" for other codes: the inverse of
    `user_receivable`.
    """
    prefix = user_receivable("")
    return code.removeprefix(prefix) if code.startswith(prefix) else ""


def user_promo(user_id: str, grant_id: str) -> str:
    """Return the account of one credit grant. Its promotional credits expire."""
    return f"user:{user_id}:promo:{grant_id}"


def is_clearing(code: str) -> bool:
    """Return whether holds reserve credits for this account. It is empty after every event."""
    return code.startswith("clearing:")


def is_income(code: str) -> bool:
    return code.startswith("income:")


def is_receivable(code: str) -> bool:
    """Return whether a code names a debt to us."""
    return code.startswith(("asset:user_recv:", "asset:seller_recv:"))


def is_provider(code: str) -> bool:
    return code.startswith("provider:")


def is_promo(code: str) -> bool:
    """Return whether a code names promotional credits."""
    return code.startswith("user:") and ":promo:" in code


def owner_of(code: str) -> str:
    """Return the user whose own credits a code names, or "" for other codes: the inverse of `user_paid`."""
    is_own = code.startswith("user:") and code.endswith(":paid")
    return code.removeprefix("user:").removesuffix(":paid") if is_own else ""


def own_beside(code: str) -> str:
    """Return the account of own credits of the user to whom this code's credits were granted."""
    return f"{code.partition(':promo:')[0]}:paid"


def pool_paid(pool_id: str) -> str:
    """Return the account of the credits that an organization's members draw from."""
    return f"pool:{pool_id}:paid"


def seller_maturing(seller_id: str) -> str:
    """Return the account of earnings that a seller cannot be paid yet."""
    return f"seller:{seller_id}:maturing"


def seller_reserve(seller_id: str) -> str:
    """Return the account of the earnings that are held back from a seller to cover later claims."""
    return f"seller:{seller_id}:reserve"


def seller_of(code: str) -> str:
    """Return the seller to whom one of a seller's accounts belongs."""
    return code.removeprefix("seller:").rpartition(":")[0]


def seller_receivable(seller_id: str) -> str:
    """Return the account of what a seller owes us: earnings that were paid out and had to be given back."""
    return f"asset:seller_recv:{seller_id}"


def seller_payable(seller_id: str) -> str:
    """Return the account of a seller's earnings that may be paid out."""
    return f"seller:{seller_id}:payable"


def provider_accrued(provider: str) -> str:
    """Return the account of what we owe a cloud provider and have not paid yet."""
    return f"provider:{provider}:accrued"


def provider_id(name: str) -> str:
    """Return a provider's id in the chart, made from the name that a price list or an operator gives it."""
    return _NOT_IN_ID.sub("-", name.partition("/")[0])[:_ID_MAX] or "unnamed"


def department(name: str) -> str:
    """Return the account of the compute units that a department used."""
    return f"cu:dept:{name}"


def supply(lane: str) -> str:
    """Return the account of the compute units that a lane of our own machines supplied."""
    return f"cu:supply:{lane}"
