"""Owners by name or id: which machines are meant, which are unknown, and that a name gains no access."""

from pathlib import Path

import pytest

from cluster.control.owners import Owners
from cluster.errors import MachineUnknown
from cluster.plans.planned import Pin
from cluster.trust.identity import NodeId
from cluster.trust.machines import MachineBook

DESK, LAPTOP = NodeId("3f6c0d" + "0" * 26), NodeId("a91b77" + "0" * 26)


@pytest.fixture
def book(tmp_path: Path) -> MachineBook:
    book = MachineBook.open(tmp_path / "machines.json", clock=lambda: 1000.0)
    book.certified(DESK, "desk", until_s=2000.0)
    book.certified(LAPTOP, "laptop", until_s=2000.0)
    return book


def test_owners_are_found_by_name_and_by_id(book: MachineBook) -> None:
    pin, unknown = Owners(("3f6c0d", "laptop"), 2).pin(book)
    assert pin == Pin(frozenset({DESK, LAPTOP}), first_layers=2, last_layers=2)
    assert not unknown


def test_an_unknown_owner_is_named_and_one_must_be_known(book: MachineBook) -> None:
    pin, (unknown,) = Owners(("desk", "toaster")).pin(book)
    assert pin.owners == {DESK}
    assert "toaster" in unknown
    with pytest.raises(MachineUnknown, match="toaster"):
        Owners(("toaster",)).pin(book)


def test_a_machine_named_like_an_owners_id_is_not_the_owner(book: MachineBook) -> None:
    book.certified(NodeId("b" * 32), DESK, until_s=2000.0)
    assert Owners((DESK,)).pin(book)[0].owners == {DESK}
    book.note_present(NodeId("b" * 32), "3f6c0d", 2000.0)
    with pytest.raises(MachineUnknown, match="2 machines"):
        Owners(("3f6c0d",)).pin(book)
