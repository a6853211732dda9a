"""Known records: the same in any order of exchange, nothing forged, and no more than has room."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from market.errors import MarketError
from market.network.known import KnownRecords, check_received
from market.network.room import OWN, RecordBounds, Sources
from market.protocol.identity.keys import identity_of
from market.protocol.identity.statements import found, revoke, rotate
from market.protocol.records.book import alive
from market.protocol.records.envelope import Record
from market.protocol.records.exchange import differing, summary
from tests.examples import examples
from tests.market.parties import NOW_MS, id_of, key_of, signed_record
from tests.market.test_listings import LISTING

MINUTE_MS = 60_000
ANN = identity_of(key_of("ann").public_key, key_of("drawer").public_key)
BOB = id_of("bob")


def offer(by: str, name: str = "a", revision: int = 0, issuer: str = "", minute: int = 0) -> Record:
    made_ms = NOW_MS + minute * MINUTE_MS
    return signed_record(by, "listing", LISTING, name, revision, made_ms, 5 * MINUTE_MS, issuer or id_of(by))


def turn(identity: str, number: int, old: str, new: str, by: str = "") -> Record:
    return rotate(identity, number, key_of(old).public_key, key_of(new), key_of(by or old), NOW_MS)


def drop(identity: str, key: str, by: str) -> Record:
    return revoke(identity, key_of(key).public_key, key_of(by), NOW_MS)


FOUNDED = found(key_of("ann"), key_of("drawer").public_key, NOW_MS)
# Each with what it rests on, as owners tell it; the last ones are lies.
SAYINGS: list[list[Record]] = [
    *([FOUNDED, offer("ann", name, n, ANN, n)] for name in "ab" for n in range(3)),
    [FOUNDED, turn(ANN, 1, "ann", "ann2"), offer("ann2", "a", 3, ANN, 3)],
    [FOUNDED, turn(ANN, 1, "ann", "thief")],
    # Kept, though an old key revokes no newer one.
    [FOUNDED, turn(ANN, 1, "ann", "ann2"), drop(ANN, "ann2", "ann")],
    [FOUNDED, turn(ANN, 1, "ann", "ann2", "drawer"), drop(ANN, "ann", "drawer")],
    *([offer("bob", name, n, BOB, n)] for name in "xy" for n in range(2)),
    [turn(BOB, 1, "bob", "bob2"), drop(BOB, "bob", "bob2"), offer("bob2", "x", 2, BOB, 2)],
    [turn(BOB, 1, "bob", "bob2"), turn(BOB, 2, "bob2", "bob3"), offer("bob3", "x", 3, BOB, 3)],
    [drop(BOB, "bob", "bob")],
]
LIES = [
    offer("eve", "x", 99, BOB),
    turn(BOB, 1, "bob", "eve", "eve"),
    turn(ANN, 1, "eve", "eve2", "eve"),
    drop(BOB, "bob", "eve"),
    signed_record("bob", "payment", LISTING, issuer=BOB),
]

events = st.one_of(
    st.tuples(st.just("tell"), st.integers(0, 2), st.sampled_from(SAYINGS)),
    st.tuples(st.just("lie"), st.integers(0, 2), st.sampled_from(LIES).map(lambda lie: [lie])),
    st.tuples(st.just("meet"), st.sampled_from([(0, 1), (0, 2), (1, 2)]), st.none()),
    st.tuples(st.just("later"), st.integers(1, 6), st.none()),
)


def keeper(**bounds: int) -> KnownRecords:
    return KnownRecords(Sources(["marketplace"], ["one", "other"]), replace(RecordBounds(), **bounds))


def tell(known: KnownRecords, records: Sequence[Record], now_ms: int = NOW_MS, source: str = "one") -> set[str]:
    """Return the digests of what is left of the known and received records."""
    checked = []
    for record in records:
        try:
            check_received(record, now_ms, allows_loopback=False)
        except MarketError:
            continue
        checked.append(record)
    known.take(checked, source, now_ms)
    return {each.digest for each in known.book.slots.values()}


def meet(one: KnownRecords, other: KnownRecords, now_ms: int) -> None:
    for _ in range(10):
        before = summary(one.book), summary(other.book)
        tell(other, differing(one.book, before[1]), now_ms)
        tell(one, differing(other.book, summary(one.book)), now_ms, "other")
        if before == (summary(one.book), summary(other.book)):
            return
    raise AssertionError("they never end")


def offers(known: KnownRecords, now_ms: int) -> set[str]:
    return {e.digest for e in alive(known.book, now_ms, known.standing) if e.kind == "listing"}


@given(st.lists(events, max_size=30))
@settings(max_examples=examples(30, 120))
def test_three_keepers_agree_when_they_meet_again(script: list[tuple[str, Any, Any]]) -> None:
    keepers = [keeper() for _ in range(3)]
    now_ms, told = NOW_MS + 3 * MINUTE_MS, set[str]()
    truth = keeper()
    for what, which, records in script:
        if what in ("tell", "lie"):
            tell(keepers[which], records, now_ms)
            tell(truth, records, now_ms)
            told |= {each.digest for each in records if what == "tell"}
        elif what == "meet":
            meet(keepers[which[0]], keepers[which[1]], now_ms)
        else:
            now_ms += which * MINUTE_MS
    for _ in range(2):
        for one, other in combinations(keepers, 2):
            meet(one, other, now_ms)
    for each in (*keepers, truth):
        each.sweep(now_ms)
    assert summary(keepers[0].book) == summary(keepers[1].book) == summary(keepers[2].book)
    for identity in (ANN, BOB):
        statements = {each.digest for each in keepers[0].statements_of(identity)}
        assert statements == {each.digest for each in truth.statements_of(identity)}
    # Who was told of an offer while its key was in doubt may have dropped it: its owner tells it again.
    assert offers(keepers[0], now_ms) <= offers(truth, now_ms) <= told
    lies = {each.digest for each in LIES}
    assert not lies & {each.digest for each in keepers[0].book.slots.values()}


def test_a_revocation_ends_an_offer_at_once_and_for_good() -> None:
    known = keeper()
    lure = offer("bob")
    assert tell(known, [lure]) == {lure.digest}
    revocation = drop(BOB, "bob", "bob")
    assert tell(known, [revocation]) == {revocation.digest}
    assert tell(known, [lure, offer("bob", revision=9)], source=OWN) == {revocation.digest}


def test_what_is_expired_is_forgotten_and_does_not_come_back() -> None:
    known = keeper()
    old, newest = offer("bob", revision=1), signed_record("bob", "listing", LISTING, "a", 2, NOW_MS + 1, 1000)
    tell(known, [old, newest])
    assert offers(known, NOW_MS + 2000) == set()
    later_ms = newest.made_ms + 1000 + 10 * MINUTE_MS + 1
    assert len(known.sweep(later_ms).dropped) == 1
    assert tell(known, [old, newest], later_ms) == set()
    assert tell(known, [offer("bob", minute=9)], NOW_MS) == set(), "from the future"


def test_many_names_share_one_strangers_room() -> None:
    """50 sources of 14 identities each share the third parties' room, and take no other room."""
    known = keeper(trusted=40, peer=10, stranger=12, strangers=60)
    marketplace = tell(known, [offer(f"housed{n}") for n in range(30)], source="marketplace")
    tell(known, [offer(f"peered{n}") for n in range(30)], source="one")
    honest = offer("honest")
    tell(known, [honest], source="from 192.0.2.0/24")
    for network in range(50):
        tell(known, [offer(f"sybil{network}-{n}") for n in range(14)], source=f"from {network}")
    kept = {each.digest for each in known.book.slots.values()}
    assert marketplace | {honest.digest} <= kept
    assert len(kept) == 30 + 10 + 60
    shares = [known._held[each.issuer].source for each in known.book.slots.values()]
    assert max(shares.count(f"from {network}") for network in range(50)) <= 12
    # A late seller gets an even share all the same; what the owner says always has room.
    late, own = offer("late"), offer("own")
    assert late.digest in tell(known, [late], source="from 198.51.100.0/24")
    assert own.digest in tell(known, [own], source=OWN)
    # Told by the marketplace, a stranger's seller has the marketplace's room.
    tell(known, [honest, offer("honest", "b")], source="marketplace")
    assert known._held[id_of("honest")].source == "marketplace"


def test_revocations_of_the_known_need_no_room_and_stay_when_others_want_it() -> None:
    known = keeper(stranger=2, strangers=4)
    first, second = offer("bob"), offer("cid")
    tell(known, [first, second], source="from a")
    revocation = drop(BOB, "bob", "bob")
    turned = turn(BOB, 1, "bob", "bob2")
    later = tell(known, [revocation, turned, offer("dan")], source="from a")
    assert revocation.digest in later
    assert known.standing(BOB, key_of("bob").public_key.hex()) == "revoked"
    for network in range(9):
        tell(known, [offer(f"new{network}-{n}") for n in range(9)], source=f"from {network}")
    assert known.standing(BOB, key_of("bob").public_key.hex()) == "revoked"


def test_who_holds_a_key_fills_no_book_with_it_and_cannot_push_out_the_recovery() -> None:
    known = keeper()
    thefts = [turn(ANN, 1, "ann", f"t{n}") for n in range(80)]
    deeper = [turn(ANN, 2, f"t{n}", f"t{n}-{m}") for n in range(9) for m in range(20)]
    revoked = [drop(ANN, f"t{n}", f"t{n}") for n in range(80)]
    tell(known, [FOUNDED, *thefts, *deeper, *revoked])
    recovered = [turn(ANN, 1, "ann", "ann2", "drawer"), drop(ANN, "ann", "drawer")]
    tell(known, recovered)
    tell(known, [*thefts, *deeper, *revoked])
    assert len(known.statements_of(ANN)) <= 1 + 160 + 96
    assert known.standing(ANN, key_of("ann2").public_key.hex()) == "current"
    assert known.standing(ANN, key_of("ann").public_key.hex()) == "revoked"
    many = [offer("bob", f"n{n:03}") for n in range(60)]
    tell(known, many)
    assert len(offers(known, NOW_MS)) == RecordBounds().listings_per_issuer
