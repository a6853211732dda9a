"""Signed records: one form only, no changed record is believed, and stores agree in any order of exchange."""

import hashlib
import json
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from accounting.money import MAX_EVENT_NANO
from accounting.proofs.signing_key import is_signed
from market.errors import IdentityInvalid, RecordInvalid
from market.protocol.identity.statements import check_statement, found
from market.protocol.records.amounts import Amount
from market.protocol.records.book import NAMES_MAX, Book, alive, book_of, forget, merge
from market.protocol.records.canonical import INTEGER_MAX, canonical
from market.protocol.records.envelope import DOMAIN, RECORD_BYTES_MAX, Record, open_record
from market.protocol.records.exchange import differing, summary
from market.protocol.records.key_status import Standing
from tests.examples import examples
from tests.market.curves import ANYONES_KEYS, FIELD, GROUP_ORDER, forged, signed_again
from tests.market.parties import NOW_MS, id_of, key_of, signed_record

MINUTE_MS = 60_000


class Note(Struct, frozen=True):
    text: str = ""
    amount: Amount = Amount(0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-INTEGER_MAX, INTEGER_MAX) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_names_are_sorted_as_rfc_8785_says() -> None:
    """The example of its section 3.2.3, without the names' meanings."""
    names = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    written = '{"\\r":2,"1":4,"\u0080":6,"\u00f6":7,"\u20ac":1,"\U0001f600":5,"\ufb33":3}'
    assert canonical(names) == written.encode()
    assert (
        canonical('\x00\x1f\x7f\b\t\n\f\r"\\/\u2028') == b'"\\u0000\\u001f\x7f\\b\\t\\n\\f\\r\\"\\\\/\xe2\x80\xa8"'
    )


@given(json_values)
def test_there_is_one_form_and_it_says_the_same(value: object) -> None:
    written = canonical(value)
    assert json.loads(written) == value
    assert canonical(json.loads(written)) == written


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    "value", [0.5, 1.0, INTEGER_MAX + 1, "\ud800", {1: 2}, b"x", {"a": {"b": float("nan")}}, nested(13)]
)
def test_what_others_could_read_otherwise_is_not_signed(value: object) -> None:
    with pytest.raises(RecordInvalid):
        canonical(value)


def test_a_record_reads_as_it_was_signed() -> None:
    record = signed_record("ann", "listing", Note("é", Amount(12)), "gemma", 7, lasts_ms=MINUTE_MS)
    again = open_record(record.raw)
    assert again == record
    assert (again.issuer, again.name, again.revision) == (id_of("ann"), "gemma", 7)
    assert again.read("listing", Note) == Note("é", Amount(12))
    assert b'"amount":"12"' in record.raw


@given(st.data())
@settings(max_examples=examples(30, 150))
def test_no_byte_of_a_record_can_be_changed(data: st.DataObject) -> None:
    raw = signed_record("ann", "listing", Note("hello", Amount(5)), lasts_ms=MINUTE_MS).raw
    at = data.draw(st.integers(0, len(raw) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != raw[at]))
    with pytest.raises(RecordInvalid):
        open_record(raw[:at] + bytes([other]) + raw[at + 1 :])


@given(st.binary(max_size=200))
def test_bytes_from_anywhere_are_refused_and_nothing_worse(raw: bytes) -> None:
    with pytest.raises(RecordInvalid):
        open_record(raw)


@pytest.mark.parametrize(
    "raw", [b"[" * 10_000, b'{"a":' * 2_000, b" " * (RECORD_BYTES_MAX + 1), b"1", b'{"a":1,"a":1}']
)
def test_hostile_shapes_are_refused(raw: bytes) -> None:
    with pytest.raises(RecordInvalid):
        open_record(raw)


def test_there_are_no_other_bytes_that_say_the_same() -> None:
    """Else one record would have many digests, and what a digest names would not be certain."""
    raw = signed_record("ann", "listing", Note("hello"), lasts_ms=MINUTE_MS).raw
    members = json.loads(raw)
    others = [
        raw + b" ",
        json.dumps(members, separators=(",", ":")).encode().replace(b"hello", b"hell\\u006f"),
        json.dumps(dict(reversed(members.items())), separators=(",", ":")).encode(),
        raw.replace(b'"v":1', b'"v":1,"v":1'),
        raw.replace(b'"v":1', b'"v":1.0'),
    ]
    for other in others:
        assert json.loads(other) == members
        assert other != raw
        with pytest.raises(RecordInvalid):
            open_record(other)


def of_the_group(half: str, order: int) -> str:
    """The next number that stands for the same."""
    number = int.from_bytes(bytes.fromhex(half), "little") + order
    return number.to_bytes(32, "little").hex()


SIGNATURES: list[Callable[[str], str]] = [
    lambda text: text + "\n",
    lambda text: text + " ",
    lambda text: " " + text,
    lambda text: text[:64] + " " + text[64:],
    lambda text: text.upper(),
    lambda text: text[:64] + text[64:].upper(),
    lambda text: text + "00",
    lambda text: text[:-2],
    lambda text: "0x" + text,
    lambda text: text[:64] + of_the_group(text[64:], GROUP_ORDER),
    lambda text: of_the_group(text[:64], FIELD) + text[64:],
    lambda text: text.replace("a", "\uff41"),
]
"""Other ways to write one signature, and the other numbers that stand for it in the group."""
TEXTS: list[Callable[[bytes], bytes]] = [
    lambda raw: raw,
    lambda raw: raw + b"\n",
    lambda raw: b"\xef\xbb\xbf" + raw,
    lambda raw: raw.replace(b":", b": ", 1),
    lambda raw: raw.replace(b'"kind"', b'"\\u006bind"'),
    lambda raw: json.dumps(dict(reversed(json.loads(raw).items())), separators=(",", ":")).encode(),
    lambda raw: raw[:-1] + b',"signature":' + json.dumps(json.loads(raw)["signature"]).encode() + b"}",
    lambda raw: canonical(json.loads(raw) | {"zone": "unsigned"}),
    lambda raw: canonical({name: value for name, value in json.loads(raw).items() if value is not None}),
    lambda raw: raw.replace(b'"v":1', b'"v":1.0'),
    lambda raw: raw.replace(b'"revision":3', b'"revision":03'),
]
"""Other ways to write the object around it."""


@given(st.sampled_from("abcdefgh"), st.sampled_from([lambda text: text, *SIGNATURES]), st.sampled_from(TEXTS))
@settings(max_examples=examples(40, 200))
def test_no_other_bytes_carry_what_was_signed(
    name: str, spell: Callable[[str], str], write: Callable[[bytes], bytes]
) -> None:
    record = signed_record("ann", "listing", Note(), name, 3, lasts_ms=MINUTE_MS)
    members = json.loads(record.raw)
    try:
        other = write(canonical(members | {"signature": spell(members["signature"])}))
    except (OverflowError, RecordInvalid):
        assume(False)
    assert open_record(record.raw) == record
    if other != record.raw:
        with pytest.raises(RecordInvalid):
            open_record(other)


def test_a_second_signature_over_the_same_members_makes_no_second_record() -> None:
    """Only the holder of the key can make one: a digest keeps naming the same record."""
    record = signed_record("ann", "listing", Note(), lasts_ms=MINUTE_MS)
    members = json.loads(record.raw)
    del members["signature"]
    signature = signed_again(hashlib.sha256(b"ann").digest(), DOMAIN + canonical(members))
    again = open_record(canonical(members | {"signature": signature.hex()}))
    assert again.raw != record.raw
    assert again.digest == record.digest
    assert book_of([again, record]) == book_of([record, again])
    assert summary(book_of([again])) == summary(book_of([record]))


@pytest.mark.parametrize("key", ANYONES_KEYS, ids=bytes.hex)
def test_a_key_under_which_anyone_can_sign_is_none(key: bytes) -> None:
    members = json.loads(signed_record("ann", "listing", Note(), lasts_ms=MINUTE_MS).raw) | {"key": key.hex()}
    del members["signature"]
    for revision in range(200):
        message = DOMAIN + canonical(members | {"revision": revision})
        if signature := forged(key, message):
            break
    assert signature, "the library alone believes one of these"
    assert not is_signed(key, signature, message)
    with pytest.raises(RecordInvalid) as refused:
        open_record(canonical(members | {"revision": revision, "signature": signature.hex()}))
    assert refused.value.field == "key"
    with pytest.raises(IdentityInvalid, match="recovery key"):
        check_statement(found(key_of("ann"), key, NOW_MS))


def resigned(**changed: object) -> bytes:
    """A record whose members were replaced before its signature was made: what a hostile issuer may send."""
    members = json.loads(signed_record("ann", "listing", Note(), lasts_ms=MINUTE_MS).raw) | changed
    del members["signature"]
    members["signature"] = key_of("ann").sign(DOMAIN + canonical(members)).hex()
    return canonical(members)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"v": 2}, "v"),
        ({"kind": "gift"}, "kind"),
        ({"issuer": "ANN"}, "issuer"),
        ({"name": "two words"}, "name"),
        ({"revision": -1}, "revision"),
        ({"revision": True}, "revision"),
        ({"expires_ms": None}, "expires_ms"),
        ({"expires_ms": NOW_MS + 11 * MINUTE_MS}, "expires_ms"),
        ({"expires_ms": NOW_MS}, "expires_ms"),
        ({"body": "text"}, "body"),
    ],
)
def test_the_error_names_the_field(changed: dict[str, object], field: str) -> None:
    with pytest.raises(RecordInvalid) as refused:
        open_record(resigned(**changed))
    assert refused.value.field == field


def test_members_of_tomorrow_are_kept_and_signed() -> None:
    assert b"colour" in open_record(resigned(colour="green")).raw


@pytest.mark.parametrize(
    "amount", [5, "-1", "01", "1.0", "1e3", " 1", "١", "1_0", "", str(MAX_EVENT_NANO + 1), True, None]
)
def test_amounts_are_plain_decimal_strings(amount: object) -> None:
    record = open_record(resigned(body={"amount": amount}))
    with pytest.raises(RecordInvalid) as refused:
        record.read("listing", Note)
    assert refused.value.field == "body.amount"


# Few issuers and names, so that records meet. Higher revisions are made later, as honest issuers do.
RECORDS = [
    signed_record(by, "listing", Note(str(which)), name, revision, NOW_MS + revision * MINUTE_MS, lasts_ms)
    for by in ("ann", "bob")
    for name in ("a", "b")
    for revision in range(4)
    for which, lasts_ms in enumerate((MINUTE_MS, 9 * MINUTE_MS))
] + [signed_record("ann", "revocation", Note(str(which)), name) for which in range(2) for name in ("x", "y")]

ledger = st.lists(st.sampled_from(RECORDS), max_size=12).map(book_of)
clocks = st.integers(-5, 60).map(lambda minutes: NOW_MS + minutes * MINUTE_MS)


def everybody(_issuer: str, _key: str) -> Standing:
    return "current"


@given(ledger, ledger, ledger)
def test_merging_is_a_join(a: Book, b: Book, c: Book) -> None:
    assert merge(a, b) == merge(b, a)
    assert merge(a, merge(b, c)) == merge(merge(a, b), c)
    assert merge(a, a) == a
    assert merge(a, Book()) == a


@given(ledger, clocks)
def test_only_the_newest_that_has_not_expired_counts(book: Book, now_ms: int) -> None:
    living = alive(book, now_ms, everybody)
    for record in living:
        assert record.expires_ms is None or now_ms < record.expires_ms
        rivals = [
            other for other in book.slots.values() if (other.issuer, other.name) == (record.issuer, record.name)
        ]
        assert record.revision == max(other.revision for other in rivals)


@given(ledger, ledger, clocks, st.integers(0, 60))
def test_what_was_forgotten_never_mattered(mine: Book, theirs: Book, now_ms: int, later: int) -> None:
    """Nor does it come back from a book that has not forgotten it."""
    later_ms = now_ms + later * MINUTE_MS

    def count(book: Book) -> set[str]:
        return {record.digest for record in alive(book, later_ms, everybody)}

    assert count(merge(forget(mine, now_ms), theirs)) == count(merge(mine, theirs))


def test_who_may_not_speak_neither_counts_nor_hides_others() -> None:
    honest = signed_record("ann", "listing", Note(), "a", 1, lasts_ms=MINUTE_MS)
    forged = signed_record("eve", "listing", Note(), "a", INTEGER_MAX, lasts_ms=MINUTE_MS, issuer=id_of("ann"))

    def standing(_issuer: str, key: str) -> Standing:
        return "current" if key == key_of("ann").public_key.hex() else "unknown"

    assert alive(book_of([forged, honest]), NOW_MS, standing) == [honest]
    assert alive(book_of([forged, honest]), NOW_MS, lambda _i, _k: "revoked") == []


def test_one_key_fills_no_book() -> None:
    many = [signed_record("eve", "listing", Note(), f"n{n:03}", lasts_ms=MINUTE_MS) for n in range(NAMES_MAX + 5)]
    ours = signed_record("ann", "listing", Note(), "z", lasts_ms=MINUTE_MS)
    halves = book_of(many[:40]), book_of([*many[40:], ours])
    assert merge(*halves) == book_of([*many, ours])
    assert len(merge(*halves).slots) == NAMES_MAX + 1


@given(ledger, ledger)
def test_two_gateways_come_to_know_the_same(mine: Book, theirs: Book) -> None:
    told: Callable[[Book, Book], list[Record]] = lambda book, other: differing(book, summary(other))  # noqa: E731
    after = merge(mine, book_of(told(theirs, mine))), merge(theirs, book_of(told(mine, theirs)))
    assert after[0] == after[1] == merge(mine, theirs)
    assert told(*after) == []
