"""What sellers have: connected accounts, transfers to them and back, and payouts to their banks."""

from typing import Any

from tests.fakes.stripe.errors import Refused, invalid
from tests.fakes.stripe.state import Object, State, cents, required


def create_account(state: State, form: Object) -> Object:
    account = state.make(
        "account",
        type=form.get("type", "express"),
        country=form.get("country", "US"),
        email=form.get("email"),
        charges_enabled=False,
        payouts_enabled=False,
        details_submitted=False,
        requirements={"currently_due": ["external_account"], "disabled_reason": "requirements.past_due"},
        metadata=form.get("metadata", {}),
    )
    state.owners[account["id"]] = None
    return account


def create_account_link(state: State, form: Object) -> Object:
    account = state.get("account", required(form, "account"))
    for name in ("refresh_url", "return_url", "type"):
        required(form, name)
    created = int(state.clock_s())
    url = f"https://connect.stripe.test/setup/{account['id']}/{created}"
    return {"object": "account_link", "created": created, "expires_at": created + 300, "url": url}


def update_account(state: State, account_id: str, **fields: Any) -> Object:
    """What the seller does on Stripe's pages, or Stripe does about the seller."""
    account = state.get("account", account_id)
    account |= fields
    state.emit("account.updated", account, owner=account_id)
    return account


def onboard(state: State, account_id: str) -> Object:
    done: Object = {"currently_due": [], "disabled_reason": None}
    return update_account(
        state, account_id, charges_enabled=True, payouts_enabled=True, details_submitted=True, requirements=done
    )


def create_transfer(state: State, form: Object) -> Object:
    account = state.get("account", required(form, "destination"))
    amount = cents(form)
    if not account["details_submitted"]:
        raise invalid("Your destination account needs transfers enabled", "insufficient_capabilities_for_transfer")
    if amount > state.balance():
        raise invalid("You have insufficient available funds in your Stripe account.", "balance_insufficient")
    transfer = state.make(
        "transfer",
        amount=amount,
        amount_reversed=0,
        reversed=False,
        currency="usd",
        destination=account["id"],
        transfer_group=form.get("transfer_group"),
        metadata=form.get("metadata", {}),
        reversals={"object": "list", "data": [], "has_more": False},
    )
    transfer["balance_transaction"] = state.move("transfer", transfer["id"], -amount)["id"]
    state.move("payment", transfer["id"], amount, owner=account["id"])
    state.emit("transfer.created", transfer)
    return transfer


def reverse_transfer(state: State, transfer_id: str, form: Object) -> Object:
    transfer = state.get("transfer", transfer_id)
    left = transfer["amount"] - transfer["amount_reversed"]
    amount = cents(form) if "amount" in form else left
    if amount > left:
        raise invalid("Reversal amount is greater than what is left of the transfer")
    reversal = state.make(
        "transfer_reversal", amount=amount, currency="usd", transfer=transfer_id, metadata=form.get("metadata", {})
    )
    reversal["balance_transaction"] = state.move("transfer_refund", reversal["id"], amount)["id"]
    state.move("payment_refund", reversal["id"], -amount, owner=transfer["destination"])
    transfer["amount_reversed"] += amount
    transfer["reversed"] = transfer["amount_reversed"] == transfer["amount"]
    transfer["reversals"]["data"].insert(0, reversal)
    state.emit("transfer.reversed", transfer)
    return reversal


def create_payout(state: State, form: Object, owner: str | None) -> Object:
    amount = cents(form)
    if amount > state.balance(owner):
        raise invalid(
            "You have insufficient funds in your Stripe account for this transfer.", "balance_insufficient"
        )
    if owner is not None and not state.get("account", owner)["payouts_enabled"]:
        raise Refused(
            400, "invalid_request_error", "Payouts are not enabled for this account", "payouts_not_allowed"
        )
    payout = state.make(
        "payout",
        owner=owner,
        amount=amount,
        currency="usd",
        status="pending",
        method="standard",
        failure_code=None,
        metadata=form.get("metadata", {}),
    )
    payout["balance_transaction"] = state.move("payout", payout["id"], -amount, owner=owner)["id"]
    state.emit("payout.created", payout, owner)
    return payout


def end_payout(state: State, payout_id: str, *, succeeds: bool) -> Object:
    """The bank answers: money arrived, or it comes back to the account's balance."""
    owner = state.owners[payout_id]
    payout = state.get("payout", payout_id, owner)
    if succeeds:
        payout["status"] = "paid"
        state.emit("payout.paid", payout, owner)
        return payout
    payout |= {"status": "failed", "failure_code": "account_closed"}
    state.move("payout_failure", payout_id, payout["amount"], owner=owner)
    state.emit("payout.failed", payout, owner)
    return payout
