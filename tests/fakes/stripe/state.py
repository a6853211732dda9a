"""Everything that the fake account has: objects, balances, and the events that changes leave behind."""

import copy
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from tests.fakes.stripe.errors import invalid, missing

Object: TypeAlias = dict[str, Any]
Listener: TypeAlias = Callable[[Object, str | None], None]

PREFIXES = {
    "customer": "cus",
    "payment_method": "pm",
    "setup_intent": "seti",
    "payment_intent": "pi",
    "checkout.session": "cs_test",
    "charge": "ch",
    "refund": "re",
    "dispute": "du",
    "account": "acct",
    "transfer": "tr",
    "transfer_reversal": "trr",
    "payout": "po",
    "balance_transaction": "txn",
    "event": "evt",
}


class State:
    """Objects by id in the order of their making, each owned by the platform (None) or a connected account."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self.clock_s = clock_s
        self.objects: dict[str, Object] = {}
        self.owners: dict[str, str | None] = {}
        self.listeners: list[Listener] = []
        self._numbers = itertools.count(1)

    def make(self, kind: str, *, owner: str | None = None, **fields: Any) -> Object:
        object_id = f"{PREFIXES[kind]}_{next(self._numbers):014d}"
        made = {
            "id": object_id,
            "object": kind,
            "created": int(self.clock_s()),
            "livemode": False,
            "metadata": {},
            **fields,
        }
        self.objects[object_id] = made
        self.owners[object_id] = owner
        return made

    def get(self, kind: str, object_id: str, owner: str | None = None) -> Object:
        found = self.objects.get(object_id)
        if found is None or found["object"] != kind or self.owners[object_id] != owner:
            raise missing(kind, object_id)
        return found

    def all(self, kind: str, owner: str | None = None) -> Iterator[Object]:
        """Newest first, as Stripe lists."""
        for object_id in reversed(self.objects):
            found = self.objects[object_id]
            if found["object"] == kind and self.owners[object_id] == owner:
                yield found

    def emit(self, kind: str, subject: Object, owner: str | None = None) -> Object:
        """Make the event of a change, with the subject as it is now, and notify the webhook senders."""
        event = self.make("event", owner=owner, type=kind, data={"object": copy.deepcopy(subject)}, request=None)
        event["api_version"] = "2026-01-28.clover"
        if owner is not None:
            event["account"] = owner
        for listener in self.listeners:
            listener(event, owner)
        return event

    def move(
        self, kind: str, source: str, amount: int, *, fee: int = 0, owner: str | None = None, category: str = ""
    ) -> Object:
        """Book a balance transaction in cents: `amount` less `fee` is what the balance gains."""
        return self.make(
            "balance_transaction",
            owner=owner,
            type=kind,
            source=source,
            amount=amount,
            fee=fee,
            net=amount - fee,
            currency="usd",
            status="available",
            available_on=int(self.clock_s()),
            reporting_category=category or kind,
        )

    def balance(self, owner: str | None = None) -> int:
        return sum(moved["net"] for moved in self.all("balance_transaction", owner))


def cents(form: Object, name: str = "amount", *, least: int = 1) -> int:
    """Read a whole number of cents out of a form."""
    text = form.get(name)
    if not (isinstance(text, str) and text.isascii() and text.isdigit()):
        raise invalid(f"Invalid integer: {text}", "parameter_invalid_integer", name)
    if int(text) < least:
        raise invalid(f"This value must be greater than or equal to {least}.", "parameter_invalid_integer", name)
    return int(text)


def required(form: Object, name: str) -> Any:
    if form.get(name) in (None, ""):
        raise invalid(f"Missing required param: {name}.", "parameter_missing", name)
    return form[name]
