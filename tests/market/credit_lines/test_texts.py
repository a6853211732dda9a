"""Texts that partners exchange: signed by the right party, and independent of order and repetition."""

import base64
import zlib
from collections.abc import Callable
from functools import reduce
from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from market.credit_lines.credit_line_service import CreditLineService, LineOffer
from market.credit_lines.export import PREFIX, CreditLineExport, read, written
from market.credit_lines.partnership import Partnership
from market.errors import MarketError, StatementInvalid
from market.network.identity import OwnIdentity
from market.protocol.channels.credit_line import CreditLine, Payment
from market.protocol.records.amounts import Amount
from tests.market.parties import NOW_MS, id_of, signed_record

DAY_MS = 86_400_000


class Pair:
    def __init__(self, folder: Path) -> None:
        self.owns = [OwnIdentity.open(folder / name) for name in ("ann", "bob")]
        self.ann, self.bob = (
            CreditLineService(folder / name, own) for name, own in zip(("ann", "bob"), self.owns, strict=True)
        )
        offer = LineOffer(self.owns[1].id, 10**9, 2 * 10**9, DAY_MS)
        self.invitation = self.ann.text(self.ann.invite(offer, NOW_MS), "http://127.0.0.1:1")

    def befriended(self) -> tuple[Partnership, Partnership]:
        at_bob, _ = self.bob.accept(self.bob.heard(self.invitation), NOW_MS)
        at_ann, has_signed = self.ann.accept(self.ann.heard(self.bob.text(at_bob)), NOW_MS)
        assert not has_signed
        return at_ann, at_bob


def test_texts_come_to_the_same_in_any_order(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    at_ann, at_bob = pair.befriended()
    assert (at_ann.line, at_ann.is_open, at_bob.is_open) == (at_bob.line, True, True)
    assert at_bob.url == "http://127.0.0.1:1"
    texts = [pair.bob.text(at_bob)]
    for paid_nano in (5, 7, 7, 30):
        at_bob = pair.bob.acknowledge(at_bob, paid_nano, NOW_MS + paid_nano)
        texts.append(pair.bob.text(at_bob))
    with pytest.raises(MarketError, match="more was acknowledged"):
        pair.bob.acknowledge(at_bob, 29, NOW_MS)
    partnerships = [pair.ann.heard(text) for text in texts]
    ends = {reduce(Partnership.merged, order, at_ann) for order in permutations(partnerships)}
    assert {(end.paid_nano(end.own), end.paid_nano(end.partner)) for end in ends} == {(30, 0)}
    assert len(ends) == 1
    # What is on disk is what was heard.
    for each in (*partnerships, *partnerships):
        pair.ann.accept(each, NOW_MS)
    assert pair.ann.partners.find(at_ann.line.id) == ends.pop()


def with_records(text: str, *raws: bytes) -> str:
    telling = read(text)
    return written(msgspec.structs.replace(telling, records=tuple(raw.decode() for raw in raws)))


def of_other_users(pair: Pair) -> str:
    first, second = sorted((pair.owns[0].id, id_of("eve")))
    line = CreditLine(first, second, Amount(1), Amount(1), NOW_MS)
    return with_records(pair.invitation, signed_record("eve", "credit_line", line, lasts_ms=DAY_MS).raw)


def in_anns_name(pair: Pair) -> str:
    (ours,) = pair.ann.partners
    return with_records(
        pair.invitation,
        signed_record("eve", "credit_line", ours.line, lasts_ms=DAY_MS, issuer=pair.owns[0].id).raw,
    )


def of_bobs_alone(pair: Pair) -> str:
    return with_records(pair.bob.text(pair.befriended()[1]), pair.befriended()[1].records[0].raw)


def of_the_payers_word(pair: Pair) -> str:
    at_ann, _ = pair.befriended()
    payment = Payment(at_ann.line.id, pair.owns[0].id, Amount(10**9))
    record = pair.owns[0].say("payment", "it", 0, payment, NOW_MS)
    return with_records(pair.invitation, *(each.raw for each in at_ann.records), record.raw)


def of_a_revoked_key(pair: Pair) -> str:
    pair.owns[0].revoke(pair.owns[0].signer.public_key)
    (ours,) = pair.ann.partners
    return pair.ann.text(ours)


def changed(pair: Pair) -> str:
    telling = read(pair.invitation)
    return written(CreditLineExport((telling.records[0].replace("2000000000", "9000000000"),)))


def with_more_behind(text: str) -> str:
    packed = base64.urlsafe_b64decode(text.removeprefix(PREFIX) + "==")
    return PREFIX + base64.urlsafe_b64encode(packed + b"more").decode().rstrip("=")


TEXTS: list[Callable[[Pair], str]] = [
    of_other_users,
    in_anns_name,
    of_bobs_alone,
    of_the_payers_word,
    of_a_revoked_key,
    changed,
    lambda pair: pair.invitation[:-40],
    # What a lenient decoder passes over.
    lambda pair: pair.invitation[:-9] + "!" + pair.invitation[-9:],
    lambda pair: with_more_behind(pair.invitation),
    lambda pair: written(msgspec.structs.replace(read(pair.invitation), url="http://192.0.2.1\n")),
    lambda _: "",
    lambda _: PREFIX + "AAAA",
    lambda _: PREFIX + "é",
    lambda _: PREFIX + base64.urlsafe_b64encode(zlib.compress(b'{"x": ' + b"[" * 100_000)).decode(),
    lambda pair: written(msgspec.structs.replace(read(pair.invitation), url="http://127.0.0.1/ x")),
    lambda pair: written(msgspec.structs.replace(read(pair.invitation), records=())),
]


@pytest.mark.parametrize("text_of", TEXTS)
def test_texts_that_are_not_believed(tmp_path: Path, text_of: Callable[[Pair], str]) -> None:
    pair = Pair(tmp_path)
    text = text_of(pair)
    before = list(pair.bob.partners)
    with pytest.raises(MarketError):
        pair.bob.accept(pair.bob.heard(text), NOW_MS)
    assert list(pair.bob.partners) == before


def test_there_is_one_line_with_a_partner(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    at_ann, at_bob = pair.befriended()
    more = LineOffer(pair.owns[1].id, 10**10, 10**10, DAY_MS)
    with pytest.raises(StatementInvalid, match="End it"):
        pair.ann.invite(more, NOW_MS + 1)
    pair.ann.end(at_ann)
    another = pair.ann.text(pair.ann.invite(more, NOW_MS + 1))
    with pytest.raises(StatementInvalid, match="End it"):
        pair.bob.accept(pair.bob.heard(another), NOW_MS + 1)
    pair.bob.end(at_bob)
    assert pair.bob.accept(pair.bob.heard(another), NOW_MS + 1)[0].is_open
    # What is owed on the first one can still be paid.
    assert pair.bob.acknowledge(pair.bob.partners.named(at_bob.line.id), 5, NOW_MS).paid_nano(pair.owns[0].id) == 5


def test_debts_are_seen_after_a_key_was_revoked(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    _, at_bob = pair.befriended()
    pair.owns[1].revoke(pair.owns[1].signer.public_key)
    assert [each.partnership for each in pair.bob.positions()] == [at_bob]
