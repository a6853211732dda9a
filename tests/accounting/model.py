"""A second opinion: what the books must answer and contain, in plain dictionaries, knowing nothing of the code."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class ModelHold:
    user_id: str
    amount: int
    expires_ns: int
    state: str = "open"


@dataclass
class Model:
    """Balances on each account's normal side, what holds keep from spending, and the keys that were used.

    Each method returns what must become of the event: `posted`, `replayed`, or the name of an error.
    """

    posted: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    keys: dict[str, tuple[object, ...]] = field(default_factory=dict)
    holds: dict[str, ModelHold] = field(default_factory=dict)

    def credit(self, credit_id: str, user_id: str, amount: int) -> str:
        if seen := self._seen(f"credit:{credit_id}", "credit", user_id, amount):
            return seen
        self.posted["asset:bank"] += amount
        self.posted[f"user:{user_id}:paid"] += amount
        return self._book(f"credit:{credit_id}", "credit", user_id, amount)

    def place(self, request_id: str, user_id: str, amount: int, expires_ns: int) -> str:
        if seen := self._seen(f"hold:{request_id}", "hold", user_id, amount):
            return seen
        account = f"user:{user_id}:paid"
        if self.posted[account] - self.held[account] < amount:
            return "InsufficientCredit"
        self.held[account] += amount
        self.holds[request_id] = ModelHold(user_id, amount, expires_ns)
        return self._book(f"hold:{request_id}", "hold", user_id, amount)

    def capture(self, request_id: str, charge: int, cost: int) -> str:
        hold = self.holds[request_id]
        charge = min(charge, hold.amount)
        if seen := self._seen(f"cap:{request_id}", "capture", charge, cost):
            return seen
        if hold.state != "open":
            return "HoldExpired" if hold.state == "reaped" else "AlreadyResolved"
        self._resolve(hold, "captured")
        self.posted[f"user:{hold.user_id}:paid"] -= charge
        self._share(charge, cost)
        return self._book(f"cap:{request_id}", "capture", charge, cost)

    def capture_late(self, request_id: str, charge: int, cost: int, covered: int) -> str:
        hold = self.holds[request_id]
        charge = min(charge, hold.amount)
        covered = min(covered, charge)
        if seen := self._seen(f"cap:{request_id}", "late", charge, cost, covered):
            return seen
        if hold.state != "reaped":
            return "AlreadyResolved" if hold.state == "released" else "HoldNotFound"
        account = f"user:{hold.user_id}:paid"
        if self.posted[account] - self.held[account] < covered:
            return "InsufficientCredit"
        self.posted[account] -= covered
        self.posted[f"asset:user_recv:{hold.user_id}"] += charge - covered
        self._share(charge, cost)
        return self._book(f"cap:{request_id}", "late", charge, cost, covered)

    def release(self, request_id: str) -> str:
        hold = self.holds[request_id]
        if seen := self._seen(f"void:{request_id}"):
            return seen
        if hold.state != "open":
            return "HoldExpired" if hold.state == "reaped" else "AlreadyResolved"
        self._resolve(hold, "released")
        return self._book(f"void:{request_id}")

    def sweep(self, now_ns: int) -> int:
        expired = [hold for hold in self.holds.values() if hold.state == "open" and hold.expires_ns < now_ns]
        for hold in expired:
            self._resolve(hold, "reaped")
        return len(expired)

    def use(self, request_id: str, department: str, lane: str, amount: int) -> str:
        if seen := self._seen(f"use:{request_id}", department, lane, amount):
            return seen
        self.posted[f"cu:dept:{department}"] += amount
        self.posted[f"cu:supply:{lane}"] += amount
        return self._book(f"use:{request_id}", department, lane, amount)

    def forged(self, key: str, user_id: str, amount: int) -> str:
        """A credit under the key of another event: refused, unless that event was denied and left its key free."""
        if seen := self._seen(key, "forged", user_id, amount):
            return seen
        self.posted["asset:bank"] += amount
        self.posted[f"user:{user_id}:paid"] += amount
        return self._book(key, "forged", user_id, amount)

    def accounts(self) -> dict[str, tuple[int, int]]:
        """Every account that is not all zero: what is posted, and how much of it is held."""
        codes = self.posted.keys() | self.held.keys()
        both = {code: (self.posted[code], self.held[code]) for code in codes}
        return {code: amounts for code, amounts in both.items() if any(amounts)}

    def _share(self, charge: int, cost: int) -> None:
        self.posted["provider:acme:accrued"] += cost
        if cost > charge:
            self.posted["expense:burst_variance"] += cost - charge
        else:
            self.posted["income:burst_margin"] += charge - cost

    def _resolve(self, hold: ModelHold, state: str) -> None:
        hold.state = state
        self.held[f"user:{hold.user_id}:paid"] -= hold.amount

    def _seen(self, key: str, *request: object) -> str | None:
        if key not in self.keys:
            return None
        return "replayed" if self.keys[key] == request else "IdempotencyConflict"

    def _book(self, key: str, *request: object) -> str:
        self.keys[key] = request
        return "posted"


@dataclass
class LeaseModel:
    """What users have, and what the requests of each process may still cost or have cost: never more than that."""

    credits: Counter[str] = field(default_factory=Counter)
    charged: Counter[str] = field(default_factory=Counter)
    reserved: dict[tuple[int, str], dict[str, int]] = field(default_factory=dict)
    spent: dict[tuple[int, str], dict[str, int]] = field(default_factory=dict)

    def place(self, process: int, user_id: str, request_id: str, amount: int, kept_by_others: int) -> bool:
        """Whether a part must be granted: all that no request needs and no other process keeps is there for it."""
        key = (process, user_id)
        needed = sum(self.reserved.get(key, {}).values()) + sum(self.spent.get(key, {}).values())
        is_granted = amount <= self.credits[user_id] - self.charged[user_id] - kept_by_others - needed
        if is_granted:
            self.reserved.setdefault(key, {})[request_id] = amount
        return is_granted

    def end(self, process: int, user_id: str, request_id: str, charge: int) -> None:
        key = (process, user_id)
        if self.reserved.get(key, {}).pop(request_id, None) is not None:
            self.spent.setdefault(key, {})[request_id] = charge

    def book(self, process: int, user_id: str) -> None:
        """Everything that has ended is booked."""
        self.charged[user_id] += sum(self.spent.pop((process, user_id), {}).values())

    def lose(self, process: int, user_id: str) -> None:
        self.reserved.pop((process, user_id), None)
        self.spent.pop((process, user_id), None)
