"""Webhooks that Stripe did not send, or not to us, or not now, are refused, and nothing is stored or booked."""

import json

import pytest
from sqlalchemy import func, select

from accounting.payments.errors import WebhookRefused
from accounting.payments.inbox import BODY_MAX, Source
from accounting.payments.tables import stripe_event_table
from accounting.tables import event_table
from tests.accounting.payments.marketplace import USD, Marketplace
from tests.fakes.stripe.server import ACCOUNT_SECRET, CONNECT_SECRET
from tests.fakes.stripe.webhooks import sign


def _paid(marketplace: Marketplace, **changes: object) -> bytes:
    topup = marketplace.payments.topups.open("t1", "ann", 25 * USD)
    marketplace.pay(topup.session_id or "")
    message = json.loads(marketplace.stripe.webhooks.waiting[-1].body)
    return json.dumps(message | changes).encode()


def _refused(marketplace: Marketplace, body: bytes, header: str, source: Source = "account") -> None:
    with pytest.raises(WebhookRefused):
        marketplace.payments.inbox.receive(source, body, header)
    marketplace.payments.worker.run()
    with marketplace.ledger.read() as session:
        for table in (event_table, stripe_event_table):
            assert session.scalar(select(func.count()).select_from(table)) == 0


@pytest.mark.parametrize("shift_s", [-301, 301, 86_400, -(10**9)])
def test_old_and_future_messages_are_refused(marketplace: Marketplace, shift_s: int) -> None:
    body = _paid(marketplace)
    _refused(marketplace, body, sign(body, ACCOUNT_SECRET, at_s=marketplace.ledger.now_ns / 1e9 + shift_s))


def test_forged_messages_are_refused(marketplace: Marketplace) -> None:
    body = _paid(marketplace)
    now_s = marketplace.ledger.now_ns / 1e9
    good = sign(body, ACCOUNT_SECRET, at_s=now_s)
    digest = good.partition("v1=")[2]
    at = int(now_s)
    for header in (
        "",
        "t=,v1=",
        "v1=" + digest,
        f"t={at},v0={digest}",
        f"t={at},v1=",
        f"t={at},t={at},v1={digest}",
        f"t=१२३,v1={digest}",
        f"t={at + 1},v1={digest}",
        sign(body, "", at_s=now_s),
        sign(body, "whsec_other", at_s=now_s),
        sign(body, CONNECT_SECRET, at_s=now_s),
    ):
        _refused(marketplace, body, header)
    _refused(marketplace, body.replace(b"t1", b"t2") + b" ", good)
    _refused(marketplace, body, good, source="connect")


@pytest.mark.parametrize(
    "changes",
    [
        {"livemode": True},
        {"livemode": "false"},
        {"account": "acct_other"},
        {"id": ""},
        {"id": 5},
        {"id": "evt_\u0000"},
        {"data": {}},
        {"type": None},
    ],
)
def test_messages_of_another_mode_account_or_shape_are_refused(
    marketplace: Marketplace, changes: dict[str, object]
) -> None:
    body = _paid(marketplace, **changes)
    _refused(marketplace, body, sign(body, ACCOUNT_SECRET, at_s=marketplace.ledger.now_ns / 1e9))


def test_what_is_signed_but_no_event_is_refused(marketplace: Marketplace) -> None:
    now_s = marketplace.ledger.now_ns / 1e9
    for body in (b"", b"[]", b"null", b"\xff", b"{" * 10_000, b" " * (BODY_MAX + 1)):
        _refused(marketplace, body, sign(body, ACCOUNT_SECRET, at_s=now_s))


def test_replayed_messages_are_taken_once(marketplace: Marketplace) -> None:
    body = _paid(marketplace)
    taken = [
        marketplace.payments.inbox.receive(
            "account", body, sign(body, secret, at_s=marketplace.ledger.now_ns / 1e9)
        )
        for secret in (ACCOUNT_SECRET, "whsec_old", ACCOUNT_SECRET)
    ]
    assert taken == [True, False, False]
    marketplace.settle()
    assert marketplace.balance("user:ann:paid") == 25 * USD
    marketplace.check()
