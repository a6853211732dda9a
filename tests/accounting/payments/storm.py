"""A storm: random dealings with Stripe under every fault, and the ledger's expected content by another sum."""

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any, get_args

from accounting.errors import LedgerError
from accounting.payments.terms import PaymentTerms, from_cents
from tests.accounting.payments.marketplace import USD, Marketplace
from tests.fakes.stripe import connect, paying
from tests.fakes.stripe.faults import Fault

USERS = ("ann", "bob", "cy")
SELLERS = ("sam", "sue")
EARNED_NANO = 20_000 * USD


@dataclass
class Storm:
    marketplace: Marketplace
    chance: random.Random
    taken: int = 0
    """Webhooks that were answered with 200, repeated ones included."""
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    def rage(self, deliveries: int) -> None:
        """Deal until so many webhooks were taken, shuffled, a third of them twice, a third of them late."""
        dealings = (
            self.buy,
            self.buy,
            self.buy,
            self.pay,
            self.pay,
            self.pay,
            self.refund,
            self.dispute,
            self.pay_out,
        )
        answers = (self.end_refund, self.end_dispute, self.end_payout, self.reverse)
        while self.taken < deliveries:
            for _ in range(12):
                if self.chance.random() < 0.4:
                    self.marketplace.stripe.faults.order(
                        self.chance.choice(get_args(Fault)[:-1]), count=self.chance.choice((1, 4))
                    )
                self.chance.choice((*dealings, *answers))()
            self.taken += self.marketplace.stripe.webhooks.deliver(
                self.marketplace.post, chance=self.chance, duplicates=0.33, kept_back=0.33
            )
            self.marketplace.ledger.now_ns += 30 * 10**9
            self.marketplace.payments.worker.run(self.chance.randint(0, 60))
            if self.chance.random() < 0.2:
                self.marketplace.payments.tick()
        self.marketplace.stripe.faults.clear()
        self.marketplace.settle()

    def buy(self) -> None:
        amount_nano = self.chance.choice(PaymentTerms().topup_amounts_nano)
        self._try(self.marketplace.payments.topups.open, self._id("t"), self.chance.choice(USERS), amount_nano)

    def pay(self) -> None:
        if page := self._any("checkout.session", status="open"):
            self.marketplace.pay(page["id"], pays=self.chance.random() < 0.8)

    def refund(self) -> None:
        if intent := self._any("payment_intent", status="succeeded"):
            topup_id = intent["metadata"]["millrace"].removeprefix("topup-")
            self._try(
                self.marketplace.payments.refunds.open, self._id("r"), topup_id, self.chance.randint(1, 30) * USD
            )

    def end_refund(self) -> None:
        if refund := self._any("refund", status="pending"):
            paying.end_refund(self.marketplace.stripe.state, refund["id"], succeeds=self.chance.random() < 0.7)

    def dispute(self) -> None:
        charge = self._any("charge", disputed=False, refunded=False)
        if charge and self.chance.random() < 0.3:
            paying.open_dispute(self.marketplace.stripe.state, charge["payment_intent"])

    def end_dispute(self) -> None:
        if dispute := self._any("dispute", status="needs_response"):
            paying.close_dispute(self.marketplace.stripe.state, dispute["id"], won=self.chance.random() < 0.5)

    def pay_out(self) -> None:
        amount_nano = self.chance.randint(1_000, 4_000) * USD // 100
        self._try(self.marketplace.payments.payouts.open, self._id("p"), self.chance.choice(SELLERS), amount_nano)

    def end_payout(self) -> None:
        if payout := self._any("payout", status="pending"):
            connect.end_payout(self.marketplace.stripe.state, payout["id"], succeeds=self.chance.random() < 0.7)

    def reverse(self) -> None:
        transfer = self._any("transfer", reversed=False)
        if transfer and self.chance.random() < 0.3:
            left = transfer["amount"] - transfer["amount_reversed"]
            form = {"amount": str(self.chance.randint(1, left))}
            connect.reverse_transfer(self.marketplace.stripe.state, transfer["id"], form)

    def _any(self, kind: str, **fields: Any) -> dict[str, Any] | None:
        found = [
            made
            for made in self.marketplace.stripe.state.objects.values()
            if made["object"] == kind and all(made[name] == value for name, value in fields.items())
        ]
        return self.chance.choice(found) if found else None

    def _id(self, letter: str) -> str:
        return f"{letter}{next(self._numbers)}"

    def _try(self, ask: Any, *arguments: Any) -> None:
        """A caller who is told no, or told nothing, and sometimes asks again."""
        for _ in range(self.chance.randint(1, 2)):
            try:
                ask(*arguments)
            except LedgerError:
                continue


def expected(marketplace: Marketplace) -> dict[str, int]:
    """Return what the ledger must contain, computed from Stripe's objects alone."""
    sums: Counter[str] = Counter()
    for made in marketplace.stripe.state.objects.values():
        cents_of = from_cents(made.get("amount", 0))
        match made["object"], made.get("status"):
            case "payment_intent", "succeeded":
                topup = marketplace.payments.topups.find(made["metadata"]["millrace"].removeprefix("topup-"))
                sums["users"] += topup.credit_nano
                sums["income:topup_fee"] += from_cents(made["amount"]) - topup.credit_nano
            case "refund", "pending" | "succeeded":
                sums["users"] -= cents_of
            case "dispute", status:
                sums["users"] -= 0 if status == "won" else cents_of
                sums["expense:dispute_fee"] += 15 * USD
            case "transfer", _:
                sums["sellers"] -= cents_of - from_cents(made["amount_reversed"])
            case "balance_transaction", _ if made["type"] == "charge":
                sums["expense:stripe_fee"] += from_cents(made["fee"])
    sums["sellers"] += len(SELLERS) * EARNED_NANO
    return dict(sums)


def found(marketplace: Marketplace) -> dict[str, int]:
    """Return what the ledger contains. A user's debt reduces the credits, written off or not; holds are spent."""
    users = sum(
        marketplace.ledger.balance(f"user:{user}:paid").available_nano
        - marketplace.balance(f"asset:user_recv:{user}")
        for user in USERS
    )
    sums = {
        name: marketplace.balance(name)
        for name in ("income:topup_fee", "expense:dispute_fee", "expense:stripe_fee")
    }
    return sums | {
        "users": users - marketplace.balance("expense:bad_debt"),
        "sellers": sum(
            marketplace.ledger.balance(f"seller:{seller}:payable").available_nano for seller in SELLERS
        ),
    }
