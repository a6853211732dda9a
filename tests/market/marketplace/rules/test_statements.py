"""Signatures that count when a channel is settled, whatever a buyer states about its keys to different parties."""

from market.marketplace.statements import standing_to_settle
from market.protocol.identity.lineage import Identities
from market.protocol.identity.statements import rotate
from tests.market.parties import NOW_MS, id_of, key_of


def test_a_buyer_that_says_one_thing_here_and_another_there_still_pays() -> None:
    buyer, first = id_of("buyer"), key_of("buyer")
    to_the_seller, to_the_marketplace, stranger = key_of("second"), key_of("third"), key_of("stranger")
    rotations = [
        rotate(buyer, 1, first.public_key, key, first, NOW_MS) for key in (to_the_seller, to_the_marketplace)
    ]
    standing = standing_to_settle(Identities(rotations), buyer)
    for key in (first, to_the_seller, to_the_marketplace):
        assert standing(buyer, key.public_key.hex()) == "retired"
    assert standing(buyer, stranger.public_key.hex()) == "unknown"
    # A seller that does the same earns nothing by either.
    assert standing_to_settle(Identities(rotations), id_of("another"))(buyer, first.public_key.hex()) == "revoked"
