"""Whether the books add up: every rule that they must keep, checked, each breach by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from accounting.ledger import conduct, sums, witnessed
from accounting.ledger.accepted import accepted_places
from accounting.ledger.balances import Reader
from accounting.ledger.scope import Query, Scope, Witness

BLOCKS_KEPT = "blocks_kept"
AS_ASKED = "events_as_asked"

_SHOWN_MAX = 5
_NO_WITNESS = Witness()


@dataclass(frozen=True, slots=True)
class Rule:
    """What the books must keep; `query` finds where they do not.

    `is_essential` is whether money may be lost by spending on while it is broken. A shallow rule takes
    milliseconds, as one that reads the accounts only. A rule of events finds some that broke it, which never
    change: only they can be accepted (`accounting.ledger.accepted`), by the first value that it tells of them.
    """

    meaning: str
    query: Callable[[Scope], Query]
    is_essential: bool = True
    is_shallow: bool = False
    is_of_events: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule by its name in `RULES`, with the first few places where it is broken.

    `is_accepted` is whether somebody has looked into all of them, and spending goes on.
    """

    rule: str
    where: tuple[str, ...]
    is_accepted: bool = False

    @property
    def meaning(self) -> str:
        """The rule in words, as it should be."""
        return RULES[self.rule].meaning

    @property
    def is_essential(self) -> bool:
        return RULES[self.rule].is_essential and not self.is_accepted


def findings(
    reader: Reader, now_ns: int, *, deep: bool = True, since_seq: int = 0, witness: Witness = _NO_WITNESS
) -> list[Finding]:
    """Return every broken rule; an empty list means that the books add up.

    The shallow check reads only the accounts and takes milliseconds. The deep one adds up every transfer ever
    booked: for start-up, now and then, and when something looks wrong. What is asked of events is asked of those
    after `since_seq`: nothing that was booked ever changes, and what an earlier check has seen it need not see
    again. `witness` is what a maker of blocks has seen. Both must see one moment of the books, so give them a
    session that reads one (`gateway.database.read_sessions`).
    """
    scope = Scope(now_ns, since_seq, witness)
    found = list[Finding]()
    for name, rule in RULES.items():
        if deep or rule.is_shallow:
            found += _broken(reader, name, rule.query(scope))
    return found


def breaches(reader: Reader, rule: str, now_ns: int, witness: Witness = _NO_WITNESS) -> list[str]:
    """Return every place where a rule of events is broken, accepted or not, as they are named when accepted."""
    return [str(row[0]) for row in reader.execute(RULES[rule].query(Scope(now_ns, 0, witness))).all()]


def _broken(reader: Reader, name: str, query: Query) -> list[Finding]:
    """What is broken and open, then what was accepted, each as one finding."""
    rows = reader.execute(query.limit(_SHOWN_MAX)).all()
    if not rows:
        return []
    known = accepted_places(reader, name) if RULES[name].is_of_events else frozenset[str]()
    if known:
        rows = reader.execute(query.limit(_SHOWN_MAX + len(known))).all()
    is_known = [str(row[0]) in known for row in rows]
    return [
        Finding(name, tuple(shown[:_SHOWN_MAX]), is_accepted)
        for is_accepted in (False, True)
        if (
            shown := [
                ", ".join(map(str, row))
                for row, one_is in zip(rows, is_known, strict=True)
                if one_is == is_accepted
            ]
        )
    ]


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "debits_equal_credits": Rule("debits equal credits in each currency", sums.unbalanced, is_shallow=True),
        "equation": Rule(
            "what we owe and have earned is what we own and have spent, in each currency",
            sums.unequal_sides,
            is_shallow=True,
        ),
        "accounts_charted": Rule("accounts are what their codes say", sums.uncharted, is_shallow=True),
        "no_overdraft": Rule("no guarded account is below zero, holds counted", sums.overdrawn, is_shallow=True),
        "clearing_empty": Rule(
            "clearing accounts are empty between events", sums.clearing_not_empty, is_shallow=True
        ),
        BLOCKS_KEPT: Rule(
            "the newest block that this gateway has seen is there, unchanged",
            witnessed.block_gone,
            is_shallow=True,
        ),
        AS_ASKED: Rule(
            "events in no block are what was asked for under their keys",
            witnessed.not_as_asked,
            is_shallow=True,
            is_of_events=True,
        ),
        "debits_are_sums": Rule("debit totals are the sum of transfers", sums.drifted_debits),
        "credits_are_sums": Rule("credit totals are the sum of transfers", sums.drifted_credits),
        "events_numbered": Rule("events are numbered without gaps", sums.event_gaps),
        "transfers_numbered": Rule("transfers are numbered without gaps", sums.transfer_gaps),
        "holds_resolved": Rule(
            "every hold is resolved, or not long expired",
            conduct.overdue_holds,
            is_essential=False,
            is_of_events=True,
        ),
        "holds_resolved_once": Rule(
            "a hold is resolved once, between its own accounts, by no more than it put aside",
            conduct.wrong_resolutions,
            is_of_events=True,
        ),
        "clearing_passes_on": Rule(
            "every event passes on what it brings into a clearing account",
            conduct.kept_in_clearing,
            is_of_events=True,
        ),
        "captures_within_holds": Rule(
            "every capture has its hold and stays within it", conduct.captures_beyond_holds, is_of_events=True
        ),
        "draws_within_allocations": Rule(
            "what is drawn on an allocation stays within it, all draws together",
            conduct.draws_beyond_allocations,
            is_of_events=True,
        ),
        "late_after_reaper": Rule(
            "what is captured late was given back by the reaper before",
            conduct.late_without_reaper,
            is_of_events=True,
        ),
        "usage_is_charged": Rule(
            "usage rows charge what was captured", conduct.usage_beside_captures, is_of_events=True
        ),
        "variances_after_charges": Rule(
            "what is owed beyond a request's charge is booked after that charge",
            conduct.variances_before_charges,
            is_essential=False,
            is_of_events=True,
        ),
        "refunds_within_charges": Rule(
            "no refund gives back more than its request was charged",
            conduct.refunds_beyond_charges,
            is_of_events=True,
        ),
        "refunds_to_payers": Rule(
            "no account gets back more than it paid", conduct.misdirected_refunds, is_of_events=True
        ),
        "promo_lots": Rule(
            "credits that were given pay for requests or expire, and come from their one grant",
            conduct.misused_lots,
            is_of_events=True,
        ),
        "lots_expired": Rule(
            "of a lot that has ended nothing is left but what requests keep",
            conduct.late_expiries,
            is_essential=False,
        ),
        "promo_not_sold": Rule(
            "credits that were given buy nothing from sellers", conduct.sold_for_promo, is_of_events=True
        ),
    }
)
