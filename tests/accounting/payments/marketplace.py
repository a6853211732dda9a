"""A marketplace that takes money: ledger, payments and a fake Stripe on one clock, and helpers for tests."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from sqlalchemy import Engine

from accounting import chart
from accounting.errors import LedgerBroken
from accounting.money import NANO_PER_USD
from accounting.payments.calls import Calls, OnCallFailpoint
from accounting.payments.client import Stripe
from accounting.payments.context import PaymentsContext
from accounting.payments.errors import WebhookRefused
from accounting.payments.inbox import Inbox
from accounting.payments.ledger import Ledger
from accounting.payments.payments import Payments, open_payments
from accounting.payments.reconciliation import Report
from accounting.payments.tables import Topup
from accounting.payments.terms import PaymentTerms, from_cents
from accounting.rules.corrections import correction
from runtime.database import write_sessions
from tests.accounting.ledgers import ANSWER_S, LedgerService
from tests.fakes.stripe import connect, paying
from tests.fakes.stripe.server import ACCOUNT_SECRET, API_KEY, CONNECT_SECRET, StripeServer
from tests.fakes.stripe.webhooks import Endpoint

USD = NANO_PER_USD
HOUR_NS = 3600 * 10**9
GRACE_S = 3600.0


def open_marketplace(
    ledger: LedgerService,
    engine: Engine,
    url: str,
    failpoint: OnCallFailpoint = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> Payments:
    """Return payments over a ledger and a Stripe at `url`, built as in a gateway."""

    def clock_ns() -> int:
        return ledger.now_ns

    write = write_sessions(engine)
    stripe = Stripe(API_KEY, base_url=url, timeout_s=30)
    calls = Calls(stripe, write, clock_ns=clock_ns, pause_s=0, doubt_s=0, failpoint=failpoint)
    context = PaymentsContext(
        Ledger(ledger.poster, ledger.read), calls, write, PaymentTerms(), clock_ns=clock_ns, stale_s=0, check=check
    )
    secrets = {"account": ("whsec_old", ACCOUNT_SECRET), "connect": (CONNECT_SECRET,)}
    inbox = Inbox(write, secrets, is_live=False, failpoint=failpoint, clock_ns=clock_ns)  # type: ignore[arg-type]
    return open_payments(context, inbox, grace_s=GRACE_S)


class Marketplace(AbstractContextManager["Marketplace"]):
    """Payments beside their fake Stripe, which stops with the block."""

    def __init__(self, ledger: LedgerService, engine: Engine) -> None:
        self.ledger = ledger
        self.stripe = StripeServer(lambda: ledger.now_ns / 1e9)
        self.stripe.start()
        self.broken: LedgerBroken | None = None
        self.payments = open_marketplace(ledger, engine, self.stripe.url, check=self._check_ledger)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stripe.stop()

    def _check_ledger(self) -> None:
        if self.broken:
            raise self.broken

    def post(self, endpoint: Endpoint, body: bytes, signature: str) -> int:
        """What the webhook's route answers."""
        try:
            self.payments.inbox.receive(endpoint.name, body, signature)  # type: ignore[arg-type]
        except WebhookRefused:
            return 400
        return 200

    def settle(self) -> None:
        """Deliver every webhook, and let everything that stands still go on, until all is quiet."""
        for _ in range(100):
            self.ledger.now_ns += HOUR_NS
            delivered = self.stripe.webhooks.deliver(self.post)
            worked = self.payments.worker.run(10_000)
            self.payments.tick()
            if not (delivered or worked or self.stripe.webhooks.waiting or self.payments.worker.count("waiting")):
                return
        raise AssertionError("payments do not come to rest")

    def reconcile(self) -> Report:
        self.ledger.now_ns += 2 * HOUR_NS
        return self.payments.reconciliation.run()

    def buy(
        self, topup_id: str, user_id: str = "ann", credit_nano: int = 25 * USD, *, saves: bool = False
    ) -> Topup:
        """A top-up, paid on Stripe's page and booked."""
        topup = self.payments.topups.open(topup_id, user_id, credit_nano, saves_method=saves)
        assert topup.session_id
        self.pay(topup.session_id)
        self.settle()
        return self.payments.topups.find(topup_id)

    def pay(self, session_id: str, *, pays: bool = True) -> None:
        with self.stripe.lock:
            paying.pay_session(self.stripe.state, session_id, pays=pays)

    def seller(self, seller_id: str, earned_nano: int) -> str:
        """A seller who is through with onboarding and has earned something; returns the account."""
        self.payments.sellers.onboard(seller_id, "1")
        account_id = self.payments.sellers.find(seller_id).account_id
        assert account_id
        with self.stripe.lock:
            connect.onboard(self.stripe.state, account_id)
        self.settle()
        earned = correction(f"earned-{seller_id}", "asset:bank", chart.seller_payable(seller_id), earned_nano)
        self.ledger.post(earned)
        return account_id

    def funds(self, usd: int) -> None:
        """Add money that was at Stripe before, to the ledger as well."""
        with self.stripe.lock:
            txn = self.stripe.state.move("topup", "tu_before", usd * 100)
        self.ledger.post(correction(str(txn["source"]), chart.ASSET_STRIPE, "asset:bank", usd * USD))

    def balance(self, code: str) -> int:
        return self.ledger.balance(code).posted_nano

    def made(self, kind: str) -> int:
        """Return the number of objects of a kind at Stripe, of all accounts."""
        return sum(found["object"] == kind for found in self.stripe.state.objects.values())

    def check(self) -> None:
        """Check that the ledger is sound and agrees with Stripe to the cent, and that suspense is empty."""
        report = self.reconcile()
        self.ledger.reaper.sweep(ANSWER_S)
        assert (report.unmatched, report.waiting, report.difference_nano) == ((), (), 0)
        assert self.balance(chart.SUSPENSE) == 0
        assert self.balance(chart.ASSET_STRIPE) == from_cents(self.stripe.state.balance())
        assert self.ledger.findings() == []
