"""Check every rule that the ledger must keep, and report each breach by the rule's name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sqlalchemy import LargeBinary, column, exists, false, literal, select, table

from accounting.ledger import conduct, sums
from accounting.ledger.accepted import accepted_places
from accounting.ledger.balances import Reader
from accounting.ledger.scope import Query, Scope, Witness
from accounting.tables import event_table

BLOCKS_KEPT = "blocks_kept"
EVENTS_AS_REQUESTED = "events_as_asked"

_SHOWN_MAX = 5
_NO_WITNESS = Witness()
# The table of blocks is defined in `accounting.proofs`, which imports the ledger.
_block = table("block", column("n"), column("hash", LargeBinary))


def _block_gone(scope: Scope) -> Query:
    """Find the newest block that this gateway has seen, if it is gone."""
    if scope.witness.block is None:
        return select(literal("")).where(false())
    n, block_hash = scope.witness.block
    is_there = exists().where(_block.c.n == n, _block.c.hash == block_hash)
    return select(literal(f"{n}:{block_hash.hex()}")).where(~is_there)


def _altered_events(scope: Scope) -> Query:
    return select(event_table.c.seq).where(event_table.c.seq.in_(scope.witness.altered))


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that the ledger must keep. `query` finds where it breaks it.

    If an essential rule is broken, continued spending may lose money. A shallow rule takes milliseconds, such as
    one that reads only the accounts. A rule of events finds events that break it. Events never change, so only
    these breaches can be accepted (`accounting.ledger.accepted`), by the first value of their row.
    """

    meaning: str
    query: Callable[[Scope], Query]
    is_essential: bool = True
    is_shallow: bool = False
    is_of_events: bool = False


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """One broken rule by its name in `RULES`, with the first few places where it is broken.

    `is_accepted` tells that an admin has accepted all of them, so that spending continues.
    """

    rule: str
    where: tuple[str, ...]
    is_accepted: bool = False

    @property
    def meaning(self) -> str:
        """The rule, stated as it should hold."""
        return RULES[self.rule].meaning

    @property
    def is_essential(self) -> bool:
        return RULES[self.rule].is_essential and not self.is_accepted


def findings(
    reader: Reader, now_ns: int, *, deep: bool = True, since_seq: int = 0, witness: Witness = _NO_WITNESS
) -> list[BrokenRule]:
    """Return every broken rule. An empty list means that the ledger adds up.

    The shallow check reads only the accounts and takes milliseconds. The deep check adds up every transfer ever
    booked: run it at start-up, now and then, and when something looks wrong. Rules of events check only events
    after `since_seq`: booked events never change, so an earlier check need not be repeated. `witness` is what a
    maker of blocks has seen. All queries must see the same moment, so pass a session with one snapshot
    (`gateway.database.read_sessions`).
    """
    scope = Scope(now_ns, since_seq, witness)
    found = list[BrokenRule]()
    for name, rule in RULES.items():
        if deep or rule.is_shallow:
            found += _broken(reader, name, rule.query(scope))
    return found


def breaches(reader: Reader, rule: str, now_ns: int, witness: Witness = _NO_WITNESS) -> list[str]:
    """Return every place where a rule of events is broken, accepted or not, by the names used to accept them."""
    return [str(row[0]) for row in reader.execute(RULES[rule].query(Scope(now_ns, 0, witness))).all()]


def _broken(reader: Reader, name: str, query: Query) -> list[BrokenRule]:
    """Return at most two findings: the open breaches, then the accepted ones."""
    rows = reader.execute(query.limit(_SHOWN_MAX)).all()
    if not rows:
        return []
    known = accepted_places(reader, name) if RULES[name].is_of_events else frozenset[str]()
    if known:
        rows = reader.execute(query.limit(_SHOWN_MAX + len(known))).all()
    is_known = [str(row[0]) in known for row in rows]
    return [
        BrokenRule(name, tuple(shown[:_SHOWN_MAX]), is_accepted)
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
            "liabilities and income equal assets and expenses, in each currency",
            sums.unequal_sides,
            is_shallow=True,
        ),
        "accounts_charted": Rule("accounts are of the kind their codes name", sums.uncharted, is_shallow=True),
        "no_overdraft": Rule("no guarded account is below zero, holds included", sums.overdrawn, is_shallow=True),
        "clearing_empty": Rule(
            "clearing accounts are empty between events", sums.clearing_not_empty, is_shallow=True
        ),
        BLOCKS_KEPT: Rule(
            "the newest block that this gateway has seen exists, unchanged",
            _block_gone,
            is_shallow=True,
        ),
        EVENTS_AS_REQUESTED: Rule(
            "unsigned events match the requests made under their keys",
            _altered_events,
            is_shallow=True,
            is_of_events=True,
        ),
        "debits_are_sums": Rule("debit totals are the sum of transfers", sums.drifted_debits),
        "credits_are_sums": Rule("credit totals are the sum of transfers", sums.drifted_credits),
        "events_numbered": Rule("events are numbered without gaps", sums.event_gaps),
        "transfers_numbered": Rule("transfers are numbered without gaps", sums.transfer_gaps),
        "holds_resolved": Rule(
            "no unresolved hold has long expired",
            conduct.overdue_holds,
            is_essential=False,
            is_of_events=True,
        ),
        "holds_resolved_once": Rule(
            "a hold is resolved once, between its own accounts, for at most its amount",
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
            "all draws on an allocation together stay within it",
            conduct.draws_beyond_allocations,
            is_of_events=True,
        ),
        "late_after_reaper": Rule(
            "every late capture follows the reaper's release of its hold",
            conduct.late_without_reaper,
            is_of_events=True,
        ),
        "usage_is_charged": Rule(
            "usage rows charge what was captured", conduct.usage_beside_captures, is_of_events=True
        ),
        "variances_after_charges": Rule(
            "a debt beyond a request's charge is posted after that charge",
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
        "credit_grants": Rule(
            "promotional credits come from one grant, and pay for requests or expire",
            conduct.misused_grants,
            is_of_events=True,
        ),
        "grants_expired": Rule(
            "expired grants have no balance except open holds",
            conduct.late_expiries,
            is_essential=False,
        ),
        "promo_not_sold": Rule("promotional credits pay no sellers", conduct.sold_for_promo, is_of_events=True),
    }
)
