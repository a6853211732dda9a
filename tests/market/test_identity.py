"""Identities outlive their keys; a stolen key can stop an identity without a recovery key, never become one."""

import itertools
import random
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.proofs.signing_key import KeyFile, is_signed
from market.errors import IdentityInvalid
from market.network.identity import adopt_successor, prepare_successor, successor_path
from market.protocol.identity.keys import identity_of
from market.protocol.identity.lineage import Identities, Lineage
from market.protocol.identity.pseudonyms import pseudonym_for
from market.protocol.identity.statements import Revocation, Rotation, check_statement, found, revoke, rotate
from market.protocol.records.envelope import Record
from tests.market.parties import NOW_MS, id_of, key_of, signed_record

ANN = id_of("ann")
# With a recovery key that is kept in a drawer.
SAFE = identity_of(key_of("ann").public_key, key_of("drawer").public_key)
FOUNDED = found(key_of("ann"), key_of("drawer").public_key, NOW_MS)


def public(name: str) -> str:
    return key_of(name).public_key.hex()


def turned(number: int, old: str, new: str, by: str = "", identity: str = ANN) -> Record:
    return rotate(identity, number, key_of(old).public_key, key_of(new), key_of(by or old), NOW_MS)


def dropped(key: str, by: str, identity: str = ANN) -> Record:
    return revoke(identity, key_of(key).public_key, key_of(by), NOW_MS)


def traced(*records: Record, identity: str = ANN) -> Lineage:
    for record in records:
        check_statement(record)
    return Identities(records).lineage(identity)


def standings(found_out: Lineage, *names: str) -> list[str]:
    return [found_out.standing(public(name)) for name in names]


@given(st.integers(0, 8), st.randoms())
def test_keys_follow_each_other_however_they_are_told(length: int, chance: random.Random) -> None:
    names = ["ann", *(f"key{n}" for n in range(length))]
    records = [turned(n, old, new) for n, (old, new) in enumerate(itertools.pairwise(names), 1)]
    chance.shuffle(records)
    known = Identities([*records, *records[:2]])
    assert [known.standing(ANN, public(name)) for name in names] == ["retired"] * length + ["current"]


def test_no_other_key_speaks_for_an_identity() -> None:
    stranger = turned(1, "ann", "eve", by="eve")
    assert standings(traced(stranger), "ann", "eve") == ["current", "unknown"]
    assert traced(dropped("ann", by="eve")).standing(public("ann")) == "current"
    assert Identities().standing(ANN, public("eve")) == "unknown"
    assert Identities([turned(1, "eve", "bob", by="eve")]).standing(ANN, public("eve")) == "unknown"


def test_a_gap_ends_what_is_known() -> None:
    known = Identities([turned(2, "bob", "cid")])
    assert [known.standing(ANN, public(name)) for name in ("ann", "bob", "cid")] == [
        "current",
        "unknown",
        "unknown",
    ]


def test_revoked_keys_are_worth_nothing_and_old_keys_revoke_no_new_ones() -> None:
    turn = turned(1, "ann", "new")
    assert standings(traced(turn, dropped("ann", by="new")), "ann", "new") == ["revoked", "current"]
    assert standings(traced(turn, dropped("ann", by="ann")), "ann", "new") == ["revoked", "current"]
    assert standings(traced(turn, dropped("new", by="ann")), "ann", "new") == ["retired", "current"]
    assert standings(traced(turn, dropped("new", by="new")), "ann", "new") == ["retired", "revoked"]


def test_two_successors_stop_an_identity_without_a_recovery_key() -> None:
    for records in itertools.permutations((turned(1, "ann", "new"), turned(1, "ann", "eve"))):
        assert standings(traced(*records), "ann", "new", "eve") == ["revoked", "unknown", "unknown"]


def test_a_circle_of_keys_stops_it_too() -> None:
    circle = turned(1, "ann", "new"), turned(2, "new", "ann")
    assert traced(*circle).is_forked


def test_the_recovery_key_outranks_a_thief() -> None:
    theft = [
        turned(1, "ann", "eve", identity=SAFE),
        turned(2, "eve", "eve2", identity=SAFE),
        dropped("ann", by="ann", identity=SAFE),
    ]
    assert standings(traced(FOUNDED, *theft, identity=SAFE), "eve2") == ["current"]
    rescue = turned(1, "ann", "new", by="drawer", identity=SAFE)
    rescued = traced(FOUNDED, *theft, rescue, identity=SAFE)
    assert standings(rescued, "ann", "new", "eve", "eve2") == ["revoked", "current", "unknown", "unknown"]
    assert standings(traced(*theft, rescue, identity=SAFE), "ann", "new") == ["unknown", "unknown"]


def test_a_key_must_accept_to_belong_to_an_identity() -> None:
    honest = turned(1, "ann", "new").read("rotation", Rotation)
    for body in (
        Rotation(1, public("ann"), public("bob"), honest.accepted),
        Rotation(2, public("ann"), public("new"), honest.accepted),
        Rotation(0, public("ann"), public("new"), honest.accepted),
    ):
        with pytest.raises(IdentityInvalid):
            check_statement(signed_record("ann", "rotation", body, body.new_key, body.number))


def test_no_statement_hides_another_by_its_name() -> None:
    """Record stores keep the highest revision of a name, so both must follow from the content."""
    rotation = turned(1, "ann", "new").read("rotation", Rotation)
    for name, revision in ((public("eve"), 1), (rotation.new_key, 9)):
        with pytest.raises(IdentityInvalid):
            check_statement(signed_record("ann", "rotation", rotation, name, revision))
    with pytest.raises(IdentityInvalid):
        check_statement(signed_record("ann", "revocation", Revocation(public("ann")), public("bob")))
    with pytest.raises(IdentityInvalid):
        check_statement(found(key_of("ann"), key_of("ann").public_key, NOW_MS))


def test_a_buyer_is_another_for_every_seller() -> None:
    secret = bytes(range(32))
    keys = [pseudonym_for(secret, seller) for seller in ("s1", "s2", "s1")]
    assert keys[0].public_key == keys[2].public_key != keys[1].public_key
    assert pseudonym_for(bytes(32), "s1").public_key != keys[0].public_key
    assert is_signed(keys[0].public_key, keys[0].sign(b"x"), b"x")
    for bad in ((b"short", "s1"), (secret, "")):
        with pytest.raises(IdentityInvalid):
            pseudonym_for(*bad)


def test_the_next_key_takes_its_place_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    first, following = KeyFile(path).signer(), prepare_successor(path)
    assert stat.S_IMODE(successor_path(path).stat().st_mode) == 0o600
    assert prepare_successor(path).public_key == following.public_key != first.public_key
    assert not adopt_successor(path, first.public_key)
    assert KeyFile(path).signer().public_key == first.public_key
    assert adopt_successor(path, following.public_key)
    assert KeyFile(path).signer().public_key == following.public_key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not adopt_successor(path, following.public_key)
