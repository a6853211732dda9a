"""What buyers do: customers, saved cards, Checkout sessions, payments on and off session, refunds, disputes."""

from typing import Any

from tests.fakes.stripe.errors import Refused, invalid
from tests.fakes.stripe.state import Object, State, cents, required

CARD_FEE_BPS = 290
CARD_FEE_CENTS = 30
DISPUTE_FEE_CENTS = 1_500
SESSION_LASTS_S = 24 * 3600


def create_customer(state: State, form: Object) -> Object:
    return state.make("customer", email=form.get("email"), metadata=form.get("metadata", {}))


def create_session(state: State, form: Object) -> Object:
    if "customer" in form:
        state.get("customer", form["customer"])
    items = form.get("line_items", [])
    mode = required(form, "mode")
    total = sum(cents(item["price_data"], "unit_amount") * int(item.get("quantity", "1")) for item in items)
    if mode == "payment" and not total:
        raise invalid("The Checkout Session's total amount must be positive", "amount_too_small")
    session = state.make(
        "checkout.session",
        mode=mode,
        customer=form.get("customer"),
        client_reference_id=form.get("client_reference_id"),
        metadata=form.get("metadata", {}),
        amount_total=total,
        currency="usd",
        status="open",
        payment_status="unpaid",
        payment_intent=None,
        setup_intent=None,
        success_url=required(form, "success_url"),
        expires_at=int(state.clock_s()) + SESSION_LASTS_S,
    )
    session["url"] = f"https://checkout.stripe.test/c/pay/{session['id']}"
    session["intent_data"] = form.get("payment_intent_data", {})
    return session


def pay_session(state: State, session_id: str, *, pays: bool = True) -> Object:
    """What the customer does on Stripe's page: pays, or leaves the session to expire."""
    session = state.get("checkout.session", session_id)
    assert session["status"] == "open", "a session is paid once"
    if not pays:
        session["status"] = "expired"
        state.emit("checkout.session.expired", session)
        return session
    method = state.make("payment_method", type="card", customer=session["customer"])
    if session["mode"] == "setup":
        intent = state.make("setup_intent", customer=session["customer"], payment_method=method["id"])
        session["setup_intent"] = intent["id"]
        state.emit("setup_intent.succeeded", intent)
    else:
        data = session["intent_data"]
        intent = _intent(state, session["amount_total"], session["customer"], data)
        session["payment_intent"] = intent["id"]
        _succeed(state, intent, method["id"])
    session |= {
        "status": "complete",
        "payment_status": "paid" if session["mode"] == "payment" else "no_payment_required",
    }
    state.emit("checkout.session.completed", session)
    return session


def create_intent(state: State, form: Object) -> Object:
    """A payment off session, as automatic top-ups make it: confirmed at once, refused at once, or on its way."""
    if "customer" in form:
        state.get("customer", form["customer"])
    intent = _intent(state, cents(form, least=50), form.get("customer"), form)
    state.emit("payment_intent.created", intent)
    if form.get("confirm") != "true":
        return intent
    method = state.get("payment_method", required(form, "payment_method"))
    if method["customer"] != form.get("customer"):
        raise invalid(
            "The payment method is not attached to the customer of this payment", "payment_method_invalid"
        )
    if method.get("processes"):
        intent |= {"status": "processing", "payment_method": method["id"]}
        state.emit("payment_intent.processing", intent)
        return intent
    if method.get("declines"):
        intent["status"] = "requires_payment_method"
        state.emit("payment_intent.payment_failed", intent)
        raise Refused(
            402,
            "card_error",
            "Your card was declined.",
            "card_declined",
            decline_code="insufficient_funds",
            payment_intent=intent,
        )
    _succeed(state, intent, method["id"])
    return intent


def end_intent(state: State, intent_id: str, status: str) -> Object:
    """A payment that was on its way ends: `succeeded`, `requires_payment_method` or `canceled`."""
    intent = state.get("payment_intent", intent_id)
    assert intent["status"] == "processing", "a payment ends once"
    if status == "succeeded":
        _succeed(state, intent, intent["payment_method"])
        return intent
    intent["status"] = status
    state.emit("payment_intent.canceled" if status == "canceled" else "payment_intent.payment_failed", intent)
    return intent


def _intent(state: State, amount: int, customer: str | None, form: Object) -> Object:
    return state.make(
        "payment_intent",
        amount=amount,
        amount_received=0,
        currency="usd",
        customer=customer,
        status="requires_confirmation",
        metadata=form.get("metadata", {}),
        setup_future_usage=form.get("setup_future_usage"),
        payment_method=None,
        latest_charge=None,
    )


def _succeed(state: State, intent: Object, method: str) -> None:
    charge = state.make(
        "charge",
        amount=intent["amount"],
        amount_refunded=0,
        currency="usd",
        customer=intent["customer"],
        payment_intent=intent["id"],
        payment_method=method,
        paid=True,
        refunded=False,
        disputed=False,
        status="succeeded",
        metadata=dict(intent["metadata"]),
    )
    fee = intent["amount"] * CARD_FEE_BPS // 10_000 + CARD_FEE_CENTS
    charge["balance_transaction"] = state.move("charge", charge["id"], intent["amount"], fee=fee)["id"]
    intent |= {
        "status": "succeeded",
        "amount_received": intent["amount"],
        "payment_method": method,
        "latest_charge": charge["id"],
    }
    state.emit("charge.succeeded", charge)
    state.emit("payment_intent.succeeded", intent)


def create_refund(state: State, form: Object) -> Object:
    intent = state.get("payment_intent", required(form, "payment_intent"))
    charge = state.get("charge", intent["latest_charge"])
    if charge["disputed"]:
        raise invalid("This charge has been charged back", "charge_disputed")
    amount = cents(form) if "amount" in form else charge["amount"] - charge["amount_refunded"]
    if amount > charge["amount"] - charge["amount_refunded"]:
        raise invalid("Refund amount is greater than unrefunded amount on charge", "charge_already_refunded")
    charge["amount_refunded"] += amount
    charge["refunded"] = charge["amount_refunded"] == charge["amount"]
    refund = state.make(
        "refund",
        amount=amount,
        currency="usd",
        charge=charge["id"],
        payment_intent=intent["id"],
        status="pending",
        metadata=form.get("metadata", {}),
    )
    refund["balance_transaction"] = state.move("refund", refund["id"], -amount)["id"]
    state.emit("refund.created", refund)
    return refund


def end_refund(state: State, refund_id: str, *, succeeds: bool) -> Object:
    """The bank answers: the refund reached the customer, or the money comes back."""
    refund = state.get("refund", refund_id)
    if succeeds:
        refund["status"] = "succeeded"
    else:
        refund["status"] = "failed"
        moved = state.move("refund_failure", refund_id, refund["amount"], category="refund_failure")
        refund["failure_balance_transaction"] = moved["id"]
        state.emit("refund.failed", refund)
    state.emit("refund.updated", refund)
    return refund


def open_dispute(state: State, intent_id: str, *, inquiry: bool = False, **fields: Any) -> Object:
    """A customer's bank takes a payment back, with a fee on top, or asks about it first, which moves no money."""
    intent = state.get("payment_intent", intent_id)
    charge = state.get("charge", intent["latest_charge"])
    dispute = state.make(
        "dispute",
        amount=charge["amount"] - charge["amount_refunded"],
        currency="usd",
        charge=charge["id"],
        payment_intent=intent_id,
        status="warning_needs_response" if inquiry else "needs_response",
        balance_transactions=[],
        reason="fraudulent",
        **fields,
    )
    if not inquiry:
        _withdraw(state, dispute)
    state.emit("charge.dispute.created", dispute)
    if not inquiry:
        state.emit("charge.dispute.funds_withdrawn", dispute)
    return dispute


def escalate(state: State, dispute_id: str) -> Object:
    """An inquiry becomes a dispute."""
    dispute = state.get("dispute", dispute_id)
    dispute["status"] = "needs_response"
    _withdraw(state, dispute)
    state.emit("charge.dispute.funds_withdrawn", dispute)
    return dispute


def _withdraw(state: State, dispute: Object) -> None:
    state.get("charge", dispute["charge"])["disputed"] = True
    moved = state.move("adjustment", dispute["id"], -dispute["amount"], fee=DISPUTE_FEE_CENTS, category="dispute")
    dispute["balance_transactions"] = [moved]


def close_inquiry(state: State, dispute_id: str) -> Object:
    dispute = state.get("dispute", dispute_id)
    dispute["status"] = "warning_closed"
    state.emit("charge.dispute.closed", dispute)
    return dispute


def close_dispute(state: State, dispute_id: str, *, won: bool) -> Object:
    dispute = state.get("dispute", dispute_id)
    dispute["status"] = "won" if won else "lost"
    if won:
        moved = state.move("adjustment", dispute_id, dispute["amount"], category="dispute_reversal")
        dispute["balance_transactions"].append(moved)
        state.emit("charge.dispute.funds_reinstated", dispute)
    state.emit("charge.dispute.closed", dispute)
    return dispute
