"""kill -9 between storing, calling and booking: nothing is lost, and nothing happens twice."""

import pytest

from accounting.ledger.journal import Failpoint
from accounting.payments.calls import CallFailpoint
from accounting.payments.inbox import Source
from tests.accounting.forks import processes
from tests.accounting.ledgers import ANSWER_S
from tests.accounting.payments.doomed_payer import deal, die_dealing
from tests.accounting.payments.marketplace import USD, Marketplace
from tests.fakes.stripe import connect, paying
from tests.fakes.stripe.webhooks import sign

# One of each kind; `make test-slow` tries the further passes through the same places.
_ONCE: tuple[tuple[CallFailpoint | Failpoint, int], ...] = (
    ("event_stored", 1),
    ("event_handled", 2),
    ("row_stored", 1),
    ("call_stored", 1),
    ("call_made", 3),
    ("call_answered", 2),
    ("before_commit", 4),
    ("after_commit", 3),
)
_AGAIN: tuple[tuple[CallFailpoint | Failpoint, int], ...] = (
    ("row_stored", 2),
    ("call_stored", 2),
    ("call_made", 1),
    ("call_made", 2),
    ("call_made", 4),
    ("call_answered", 1),
    ("after_commit", 1),
    ("after_commit", 4),
    ("after_commit", 5),
)
PLACES = (*_ONCE, *(pytest.param(*place, marks=pytest.mark.slow) for place in _AGAIN))


def _mail(marketplace: Marketplace) -> list[tuple[Source, bytes, str]]:
    """A payment that was made and not told of yet."""
    topup = marketplace.payments.topups.open("t2", "ann", 50 * USD)
    marketplace.pay(topup.session_id or "")
    waiting, marketplace.stripe.webhooks.waiting = marketplace.stripe.webhooks.waiting, []
    now_s = marketplace.ledger.now_ns / 1e9
    return [("account", one.body, sign(one.body, one.endpoint.secret, at_s=now_s)) for one in waiting]


def _die(
    dsn: str, marketplace: Marketplace, place: CallFailpoint | Failpoint, passes: int
) -> list[tuple[Source, bytes, str]]:
    mail = _mail(marketplace)
    arguments = (dsn, marketplace.stripe.url, marketplace.ledger.now_ns, place, passes, mail)
    process = processes.Process(target=die_dealing, args=arguments)
    process.start()
    process.join(ANSWER_S * 2)
    try:
        assert process.exitcode == -9, f"{place} was not reached {passes} times"
    finally:
        process.kill()
        process.join()
    return mail


@pytest.mark.parametrize(("place", "passes"), PLACES)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_the_next_process_finds_everything_once(
    dsn: str, marketplace: Marketplace, place: CallFailpoint | Failpoint, passes: int
) -> None:
    marketplace.funds(100)
    marketplace.seller("sam", 50 * USD)
    marketplace.buy("t1")
    marketplace.buy("b1", "bob", 5 * USD, saves=True)
    marketplace.payments.payers.top_up_below("bob", 6 * USD, 10 * USD)
    deal(marketplace.payments, _die(dsn, marketplace, place, passes))
    marketplace.settle()
    refund_id = marketplace.payments.refunds.find("r1").refund_id or ""
    paying.end_refund(marketplace.stripe.state, refund_id, succeeds=True)
    payout_id = marketplace.payments.payouts.find("p1").payout_id or ""
    connect.end_payout(marketplace.stripe.state, payout_id, succeeds=True)
    marketplace.settle()
    made = {
        kind: marketplace.made(kind) for kind in ("charge", "refund", "transfer", "payout", "checkout.session")
    }
    assert made == {"charge": 4, "refund": 1, "transfer": 1, "payout": 1, "checkout.session": 4}
    assert (marketplace.balance("user:ann:paid"), marketplace.balance("user:bob:paid")) == (65 * USD, 15 * USD)
    assert marketplace.balance("seller:sam:payable") == 30 * USD
    marketplace.check()
