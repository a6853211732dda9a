"""Sealed bodies: what was sent comes out once, as a whole and in order, at the right seller, or nothing does."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.errors import SealBroken
from market.protocol.sealing.agreement import Context, Keys, SealingKey
from market.protocol.sealing.request import BODY_BYTES_MAX, open_request, seal_request
from market.protocol.sealing.seen import Seen
from market.protocol.sealing.stream import PIECE_BYTES_MAX, Opener, Sealer
from tests.examples import examples

CONTEXT = Context("c" * 64, 3, 17, "5" * 64)
SELLER_KEY = SealingKey()
KEYS = Keys(bytes(range(32)), bytes(range(12)))

pieces_lists = st.lists(st.binary(max_size=200), min_size=1, max_size=8)


def sealed_pieces(pieces: list[bytes]) -> list[bytes]:
    sealer = Sealer(KEYS)
    return [sealer.seal(piece, is_last=n == len(pieces)) for n, piece in enumerate(pieces, 1)]


@given(st.binary(max_size=3 * PIECE_BYTES_MAX), pieces_lists)
@settings(max_examples=examples(15, 40))
def test_what_was_sent_comes_out_both_ways(body: bytes, answer: list[bytes]) -> None:
    request = seal_request(body, SELLER_KEY.public, CONTEXT)
    received = open_request(request.sealed, SELLER_KEY, CONTEXT, Seen())
    assert received.body == body
    nonce, sealer = received.answer()
    opener = request.answer(nonce)
    for n, piece in enumerate(answer, 1):
        assert opener.open(sealer.seal(piece, is_last=n == len(answer))) == piece
    opener.finish()


@pytest.mark.parametrize("size_bytes", [0, 1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1])
def test_bodies_of_all_sizes(size_bytes: int) -> None:
    body = os.urandom(size_bytes)
    request = seal_request(body, SELLER_KEY.public, CONTEXT)
    assert open_request(request.sealed, SELLER_KEY, CONTEXT, Seen()).body == body


@given(pieces_lists, st.data())
def test_no_other_sequence_of_pieces_is_believed(pieces: list[bytes], data: st.DataObject) -> None:
    """Whatever a carrier makes of the pieces: it is seen at the first that is not in its place, or at the end."""
    sent = sealed_pieces(pieces)
    came = data.draw(st.lists(st.sampled_from(sent), max_size=len(sent) + 2))
    opener = Opener(KEYS)
    opened = []
    try:
        opened = [opener.open(piece) for piece in came]
        opener.finish()
    except SealBroken:
        assert came != sent
    else:
        assert came == sent
        assert opened == pieces


@pytest.mark.parametrize("order", [[1, 0, 2], [0, 0, 1, 2], [0, 2], [1, 2], [2], [0, 1], [0, 1, 2, 2], []])
def test_pieces_left_out_doubled_and_swapped_are_noticed(order: list[int]) -> None:
    sent = sealed_pieces([b"a", b"b", b"c"])
    opener = Opener(KEYS)
    with pytest.raises(SealBroken):
        for n in order:
            opener.open(sent[n])
        opener.finish()


@given(st.binary(max_size=300), st.data())
def test_no_bit_of_a_request_can_be_changed(body: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal_request(body, SELLER_KEY.public, CONTEXT).sealed)
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SealBroken):
        open_request(bytes(sealed), SELLER_KEY, CONTEXT, Seen())
    with pytest.raises(SealBroken):
        open_request(bytes(sealed[: bit // 8]), SELLER_KEY, CONTEXT, Seen())


@given(st.binary(max_size=400))
def test_bytes_from_anywhere_are_refused(sealed: bytes) -> None:
    with pytest.raises(SealBroken):
        open_request(sealed, SELLER_KEY, CONTEXT, Seen())


@pytest.mark.parametrize(
    "other",
    [
        Context("d" * 64, 3, 17, "5" * 64),
        Context("c" * 64, 4, 17, "5" * 64),
        Context("c" * 64, 3, 18, "5" * 64),
        Context("c" * 64, 3, 17, "6" * 64),
    ],
)
def test_both_must_mean_the_same_request(other: Context) -> None:
    sealed = seal_request(b"hello", SELLER_KEY.public, CONTEXT).sealed
    with pytest.raises(SealBroken):
        open_request(sealed, SELLER_KEY, other, Seen())
    with pytest.raises(SealBroken):
        open_request(sealed, SealingKey(), CONTEXT, Seen())


def test_a_request_is_answered_once() -> None:
    seen, request = Seen(), seal_request(b"hello", SELLER_KEY.public, CONTEXT)
    open_request(request.sealed, SELLER_KEY, CONTEXT, seen)
    with pytest.raises(SealBroken, match="before"):
        open_request(request.sealed, SELLER_KEY, CONTEXT, seen)
    full = Seen(room=1)
    full.add(b"other")
    assert full.is_nearly_full
    with pytest.raises(SealBroken, match="newest"):
        open_request(request.sealed, SELLER_KEY, CONTEXT, full)


def test_two_answers_to_one_request_share_no_keys() -> None:
    """A seller that lost its memory may answer twice; one key and nonce for two texts would give both away."""
    request = seal_request(b"hello", SELLER_KEY.public, CONTEXT)
    answers = [open_request(request.sealed, SELLER_KEY, CONTEXT, Seen()).answer() for _ in range(2)]
    sealed = [sealer.seal(b"the same") for _, sealer in answers]
    assert sealed[0] != sealed[1]
    with pytest.raises(SealBroken):
        request.answer(answers[0][0]).open(sealed[1])


def test_no_direction_opens_the_other() -> None:
    request = seal_request(b"hello", SELLER_KEY.public, CONTEXT)
    keys = {request.agreement.keys("request").key, request.agreement.keys("response").key}
    assert len(keys) == 2


def test_lengths_of_words_do_not_show() -> None:
    sealer = Sealer(KEYS)
    assert len({len(sealer.seal(b"x" * size)) for size in range(1, 62)}) == 1


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), b"short"])
def test_keys_that_agree_on_nothing_are_refused(key: bytes) -> None:
    with pytest.raises(SealBroken):
        seal_request(b"hello", key, CONTEXT)
    with pytest.raises(SealBroken):
        open_request(key + b"rest", SELLER_KEY, CONTEXT, Seen())


def test_what_is_too_large_is_not_sealed() -> None:
    with pytest.raises(SealBroken):
        seal_request(bytes(BODY_BYTES_MAX + 1), SELLER_KEY.public, CONTEXT)
    with pytest.raises(SealBroken):
        open_request(bytes(BODY_BYTES_MAX + 2**17), SELLER_KEY, CONTEXT, Seen())
