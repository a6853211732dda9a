"""What proves a prompt is kept while its buyer may deny it, the oldest first to go where there is no more room."""

from market.protocol.audits.prompts import Shown
from market.protocol.channels.channel import Channel, delivered
from market.protocol.sealing.agreement import Keys
from market.seller.proofs import ROOM_BYTES, Proof, Proofs
from tests.market.trade import BUYER, SELLER, TERMS, receive, vouch

SHOWN = Shown(bytes(10_000), Keys(bytes(32), bytes(12)))
SIZE_BYTES = Proof("c", 0, 1, "r", SHOWN).size_bytes


def kept(proofs: Proofs) -> list[tuple[str, int]]:
    return [(channel, proof.lane) for channel in proofs.channels for proof in proofs.of(channel)]


def test_a_channel_and_all_of_them_have_their_room() -> None:
    proofs = Proofs(bytes_max=3 * SIZE_BYTES, channel_bytes_max=2 * SIZE_BYTES)
    for lane in range(3):
        proofs.keep(Proof("a", lane, 1, "r", SHOWN))
    assert kept(proofs) == [("a", 1), ("a", 2)]
    proofs.keep(Proof("b", 0, 1, "r", SHOWN))
    proofs.keep(Proof("c", 0, 1, "r", SHOWN))
    assert kept(proofs) == [("a", 2), ("b", 0), ("c", 0)]
    # A lane's next request takes the place of the one before.
    proofs.keep(Proof("b", 0, 2, "r", SHOWN))
    assert [proof.seq for proof in proofs.of("b")] == [2]
    assert proofs.size_bytes == 3 * SIZE_BYTES
    for channel, lane in kept(proofs):
        proofs.forget(channel, lane)
    assert (proofs.size_bytes, proofs.channels) == (0, [])


def test_a_buyer_who_signs_for_nothing_drives_nothing_out() -> None:
    """Its next request is refused where an earlier one of its channel would have to be forgotten."""
    proofs = Proofs(channel_bytes_max=2 * SIZE_BYTES + ROOM_BYTES)
    for lane in range(2):
        assert proofs.has_room("a", lane, 10_000)
        proofs.keep(Proof("a", lane, 1, "r", SHOWN))
    assert not proofs.has_room("a", 2, 10_000)
    # In the place of its lane's earlier one, which was signed for, and on other channels.
    assert proofs.has_room("a", 1, 10_000)
    assert proofs.has_room("b", 0, 10_000)


def test_only_what_the_buyer_has_not_signed_for_is_kept() -> None:
    proofs = Proofs()
    promise = vouch(0, 1, 0, 10**9)
    claim = receive("seller", promise, 1000, 500, 0, is_final=True)
    channel = delivered(Channel(TERMS), claim, SELLER)
    proofs.keep(Proof.of(claim, SHOWN))
    proofs.review(channel)
    for prompt_tokens, is_kept in ((1, True), (1000, False)):
        word = receive("buyer", promise, prompt_tokens, 500, 0, is_final=True)
        channel = delivered(channel, word, BUYER)
        proofs.review(channel)
        assert bool(proofs.channels) == is_kept
