"""The fake Stripe as a process, for demos and for trying payments by hand: a gateway needs its settings alone.

    python -m tests.fakes.stripe_server --gateway http://127.0.0.1:8000

The first line is JSON with the gateway's settings (`environment`). Users and banks act by lines on stdin, as
`pay cs_1` or `payout po_1 failed`; with --obliging all users pay, join and are paid at once.
"""

import argparse
import json
import os
import sys
import threading
import urllib.error
from collections.abc import Callable, Mapping

from tests.fakes.stripe import connect, paying
from tests.fakes.stripe.server import ACCOUNT_SECRET, API_KEY, CONNECT_SECRET, StripeServer
from tests.fakes.stripe.state import State
from tests.fakes.stripe.webhooks import Endpoint, post_http

_DELIVER_EVERY_S = 0.1
_PATHS = {"account": "/accounting/v1/webhooks/stripe", "connect": "/accounting/v1/webhooks/stripe-connect"}

ACTS: Mapping[str, Callable[[State, str, str], object]] = {
    "pay": lambda state, name, _: paying.pay_session(state, name),
    "leave": lambda state, name, _: paying.pay_session(state, name, pays=False),
    "refund": lambda state, name, end: paying.end_refund(state, name, succeeds=end != "failed"),
    "dispute": lambda state, name, _: paying.open_dispute(state, name),
    "close": lambda state, name, end: paying.close_dispute(state, name, won=end != "lost"),
    "onboard": lambda state, name, _: connect.onboard(state, name),
    "payout": lambda state, name, end: connect.end_payout(state, name, succeeds=end != "failed"),
}
"""What users and banks do: a word, the object's id, and how it ends where that is theirs to say."""


def act(stripe: StripeServer, line: str) -> str:
    """Do what a line says; returns what became of it, or why nothing did."""
    word, _, rest = line.strip().partition(" ")
    name, _, end = rest.partition(" ")
    if word not in ACTS or not name:
        return f"say one of {', '.join(ACTS)}, and the id of what it is about"
    try:
        with stripe.lock:
            ACTS[word](stripe.state, name, end)
    except Exception as error:  # noqa: BLE001  the console's edge
        return f"{line.strip()}: {error!r}"
    return f"{line.strip()}: done"


def oblige(stripe: StripeServer) -> None:
    """All users do at once what the gateway waits for."""
    with stripe.lock:
        state = stripe.state
        for session in [each for each in state.all("checkout.session") if each["status"] == "open"]:
            paying.pay_session(state, session["id"])
        for account in [each for each in state.all("account") if not each["details_submitted"]]:
            connect.onboard(state, account["id"])
        for refund in [each for each in state.all("refund") if each["status"] == "pending"]:
            paying.end_refund(state, refund["id"], succeeds=True)
        for payout in [each for each in state.objects.values() if each["object"] == "payout"]:
            if payout["status"] == "pending":
                connect.end_payout(state, payout["id"], succeeds=True)


def environment(stripe: StripeServer) -> dict[str, str]:
    """A gateway's settings for this Stripe."""
    return {
        "MILLRACE_PAYMENTS__SECRET_KEY": API_KEY,
        "MILLRACE_PAYMENTS__WEBHOOK_SECRETS": json.dumps([ACCOUNT_SECRET]),
        "MILLRACE_PAYMENTS__CONNECT_WEBHOOK_SECRETS": json.dumps([CONNECT_SECRET]),
        "MILLRACE_PAYMENTS__BASE_URL": stripe.url,
    }


def _deliver(stripe: StripeServer, gateway: str, is_obliging: bool) -> None:
    """Tell the gateway what happened, as long as this process lives; what it does not take is told again."""

    def post(endpoint: Endpoint, body: bytes, signature: str) -> int:
        there = Endpoint(endpoint.name, endpoint.secret, gateway + _PATHS[endpoint.name])
        try:
            return post_http(there, body, signature)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return 0

    pause = threading.Event()
    while not pause.wait(_DELIVER_EVERY_S):
        if is_obliging:
            oblige(stripe)
        stripe.webhooks.deliver(post)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", required=True, help="whom webhooks are posted to, as http://127.0.0.1:8000")
    parser.add_argument("--obliging", action="store_true", help="everybody pays, joins and is paid at once")
    chosen = parser.parse_args()
    stripe = StripeServer()
    stripe.start()
    facts = {"base_url": stripe.url, "pid": os.getpid(), "environment": environment(stripe)}
    print(json.dumps(facts), flush=True)  # noqa: T201
    arguments = (stripe, chosen.gateway.rstrip("/"), chosen.obliging)
    threading.Thread(target=_deliver, args=arguments, daemon=True).start()
    for line in sys.stdin:
        print(act(stripe, line), flush=True)  # noqa: T201
    stripe.stop()


if __name__ == "__main__":
    main()
