"""A second opinion: what the ledger must answer and contain, in plain dictionaries, independent of the code."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Shares: TypeAlias = tuple[tuple[str, int], ...]
Deltas: TypeAlias = Mapping[str, int]
"""How much each account's balance grows, on its own side."""

GUARDED = ("user:", "pool:", "seller:", "clearing:", "asset:user_recv:", "asset:seller_recv:")


@dataclass
class Aside:
    """What an event has put aside of several accounts, in the order in which they pay."""

    parts: Shares
    expires_ns: int
    goes_to: str
    state: Literal["open", "posted", "released", "reaped"] = "open"

    @property
    def amount(self) -> int:
        return sum(amount for _, amount in self.parts)


@dataclass
class Charge:
    """What a request cost, and what may be refunded of it to each payer."""

    lane: Literal["burst", "market"]
    amount: int
    partner: str
    partner_got: int
    beyond: int
    payers: dict[str, int]


@dataclass
class Model:
    """Balances on each account's normal side, what is put aside of them, and the keys that were used.

    Each answer is what must become of the event: `posted`, `replayed`, or the name of an error.
    """

    posted: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    keys: dict[str, tuple[object, ...]] = field(default_factory=dict)
    asides: dict[str, Aside] = field(default_factory=dict)
    charges: dict[str, Charge] = field(default_factory=dict)
    _open: dict[str, Aside] = field(default_factory=dict)

    def left(self, account: str) -> int:
        return self.posted[account] - self.held[account]

    def move(self, key: str, content: object, deltas: Deltas) -> str:
        """Money moves, unless an account has too little."""
        return self._seen(key, content) or self._short(deltas) or self._book(key, content, deltas)

    def reserve_funds(self, key: str, name: str, parts: Shares, goes_to: str, expires_ns: int) -> str:
        content = ("aside", parts, goes_to)
        if answer := self._seen(key, content) or self._short(_minus(parts)):
            return answer
        self._keep(name, Aside(parts, expires_ns, goes_to))
        return self._book(key, content, {})

    def take(self, key: str, content: object, name: str, charge: int, deltas: Deltas) -> str:
        """Resolve what was put aside: the charge is taken of its parts in order, `deltas` say who gets it."""
        if answer := self._seen(key, content) or self._resolved(name):
            return answer
        moved = Counter(deltas)
        moved.update(_minus(taken(self.asides[name].parts, charge)))
        if answer := self._short(moved, freed=self.asides[name].parts):
            return answer
        self._free(name, "posted" if charge else "released")
        return self._book(key, content, moved)

    def release(self, key: str, name: str) -> str:
        if answer := self._seen(key, "release") or self._resolved(name):
            return answer
        self._free(name, "released")
        return self._book(key, "release", {})

    def capture(self, key: str, content: object, name: str, charge: int, deltas: Deltas) -> str:
        """As `take`, by an event that is a capture even where it takes nothing."""
        answer = self.take(key, content, name, charge, deltas)
        if answer == "posted":
            self.asides[name].state = "posted"
        return answer

    def capture_late(self, key: str, content: object, name: str, deltas: Deltas) -> str:
        if answer := self._seen(key, content):
            return answer
        match self.asides[name].state:
            case "released":
                return "AlreadyResolved"
            case "open" | "posted":
                return "HoldNotFound"
        return self._short(deltas) or self._book(key, content, deltas)

    def roll(
        self,
        key: str,
        content: object,
        name: str | None,
        charge: int,
        deltas: Deltas,
        kept: Shares,
        expires_ns: int,
    ) -> str:
        """Charge a lease's last parts for its requests, and reserve again under the key's name."""
        if answer := self._seen(key, content):
            return answer
        if name is not None and (answer := self._resolved(name)):
            return answer
        parts = self.asides[name].parts if name is not None else ()
        moved = Counter(deltas)
        moved.update(_minus(taken(parts, charge)))
        needed = Counter(moved)
        needed.update(_minus(kept))
        if answer := self._short(needed, freed=parts):
            return answer
        if name is not None:
            self._free(name, "posted" if charge else "released")
        if kept:
            self._keep(key.partition(":")[2], Aside(kept, expires_ns, "clearing:burst"))
        return self._book(key, content, moved)

    def draw(
        self, key: str, content: object, name: str, amount: int, deltas: Deltas, kept: Shares, expires_ns: int
    ) -> str:
        """Draw on an allocation, and reserve the rest again under its name."""
        if answer := self._seen(key, content) or self._resolved(name):
            return answer
        moved = Counter(deltas)
        moved.update(_minus(taken(self.asides[name].parts, amount)))
        self._free(name, "posted")
        if kept:
            self._keep(name, Aside(kept, expires_ns, "clearing:market"))
        return self._book(key, content, moved)

    def sweep(self, now_ns: int) -> int:
        expired = [name for name, aside in self._open.items() if aside.expires_ns < now_ns]
        for name in expired:
            self._free(name, "reaped")
            self.keys[f"reap:{name}"] = ("reap",)
        return len(expired)

    def accounts(self) -> dict[str, tuple[int, int]]:
        """Every account that is not all zero: what is posted, and how much of it is held."""
        codes = self.posted.keys() | self.held.keys()
        both = {code: (self.posted[code], self.held[code]) for code in codes}
        return {code: amounts for code, amounts in both.items() if any(amounts)}

    def _seen(self, key: str, content: object) -> str | None:
        if key not in self.keys:
            return None
        return "replayed" if self.keys[key] == (content,) else "IdempotencyConflict"

    def _resolved(self, name: str) -> str | None:
        state = self.asides[name].state
        return {"open": None, "reaped": "HoldExpired"}.get(state, "AlreadyResolved")

    def _short(self, deltas: Deltas, freed: Shares = ()) -> str | None:
        free = Counter(dict(freed))
        short = any(
            delta < 0 and account.startswith(GUARDED) and self.left(account) + free[account] + delta < 0
            for account, delta in deltas.items()
        )
        return "InsufficientCredit" if short else None

    def _keep(self, name: str, aside: Aside) -> None:
        self.asides[name] = self._open[name] = aside
        self._hold(aside, 1)

    def _free(self, name: str, state: Literal["posted", "released", "reaped"]) -> None:
        aside = self._open.pop(name)
        aside.state = state
        self._hold(aside, -1)

    def _hold(self, aside: Aside, sign: int) -> None:
        for account, amount in aside.parts:
            self.held[account] += sign * amount
            if aside.goes_to == "asset:stripe":
                self.held[aside.goes_to] += sign * amount

    def _book(self, key: str, content: object, deltas: Deltas) -> str:
        self.posted.update(deltas)
        self.keys[key] = (content,)
        return "posted"


def taken(parts: Shares, charge: int) -> Shares:
    """What a charge takes of parts in their order."""
    shares = []
    for account, amount in parts:
        shares.append((account, min(amount, charge)))
        charge -= shares[-1][1]
    return tuple(shares)


def _minus(shares: Iterable[tuple[str, int]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for account, amount in shares:
        sums[account] -= amount
    return sums
