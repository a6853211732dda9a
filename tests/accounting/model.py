"""A second opinion on leases: what requests are granted, in plain dictionaries, knowing nothing of the code."""

from collections import Counter
from dataclasses import dataclass, field


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
