"""Passwords, their links and what a change ends, on both databases; hashes are made up but where they matter."""

import asyncio
import threading
import time

import pytest

from gateway.errors import TooManyWrongKeys
from gateway.identity import password_gate, password_hash
from gateway.identity.audit import MACHINE, Actor, Filter
from gateway.identity.directory import Directory
from gateway.identity.password_hash import PLACEHOLDER_HASH, checked_password, hashed, is_outdated, matches
from gateway.identity.tables import password_link_table
from runtime.errors import Conflict, KeyInvalid, NotFound, Overloaded, RequestInvalid

ANN = Actor("user:owner", "10.0.0.1")


def test_a_hash_knows_its_password_and_how_it_was_made() -> None:
    stored = hashed("Straße und Weg")
    assert matches("Strasse und Weg".replace("ss", "ß"), stored)
    assert not matches("strasse und Weg", stored)
    assert not matches("x" * 100_000, PLACEHOLDER_HASH)
    assert not matches("Straße und Weg", "no hash")
    assert not is_outdated(stored)
    assert is_outdated(stored.replace(",t=6,", ",t=5,"))


@pytest.mark.parametrize("text", ["short", "x" * 129, ""])
def test_passwords_have_a_length(text: str) -> None:
    with pytest.raises(RequestInvalid) as refusal:
        checked_password(text)
    assert refusal.value.param == "password"


def test_the_first_link_is_for_an_admin_until_a_user_has_a_password(directory: Directory) -> None:
    passwords = directory.passwords
    directory.users.add("boss", role="admin")
    directory.users.add("ann")
    directory.users.set_role("owner", "member")
    first, second = passwords.new_first_link(), passwords.new_first_link()
    assert passwords.link(first).user.user_id == "boss"
    opened = directory.sessions.open("boss", ANN)
    assert passwords.choose(first, "hash", "10.0.0.9").user_id == "boss"
    assert directory.sessions.find(opened) is None
    assert passwords.has_any()
    for used in (first, second, "", "x" * 200, "\udcff"):
        with pytest.raises(NotFound):
            passwords.choose(used, "another", "")
    assert passwords.stored("boss")[1] == "hash"
    for nobody in ("nobody", "", "\x00", "Boss"):
        assert passwords.stored(nobody) == (None, PLACEHOLDER_HASH)
    # Anybody else's link is good all the same, and the one before it ends.
    old, new = passwords.new_link("ann", MACHINE), passwords.new_link("ann", MACHINE)
    with pytest.raises(NotFound):
        passwords.link(old)
    assert passwords.choose(new, "hash of ann", "").user_id == "ann"
    actions = {entry.action: entry.actor for entry in directory.audit.entries(Filter(target="user:boss"))}
    assert actions["password.link"] == "machine"
    assert actions["password.choose"] == "user:boss"


def test_links_end_by_themselves_and_with_their_user(directory: Directory) -> None:
    directory.users.add("ann")
    link = directory.passwords.new_link("ann", MACHINE)
    with directory.write() as session, session.begin():
        session.execute(password_link_table.update().values(expires_ns=time.time_ns() - 1))
    with pytest.raises(NotFound):
        directory.passwords.link(link)
    link = directory.passwords.new_link("ann", MACHINE)
    directory.passwords.choose(link, "hash", "")
    left = directory.passwords.new_link("ann", MACHINE)
    directory.users.remove("ann")
    assert directory.passwords.stored("ann") == (None, PLACEHOLDER_HASH)
    # Who comes back has neither the old password nor the old link.
    directory.users.add("ann")
    assert directory.passwords.stored("ann") == (None, PLACEHOLDER_HASH)
    with pytest.raises(NotFound):
        directory.passwords.link(left)


def test_a_changed_password_ends_the_other_sessions_and_is_changed_once(directory: Directory) -> None:
    passwords, sessions = directory.passwords, directory.sessions
    passwords.choose(passwords.new_first_link(), "one", "")
    here, there = sessions.open("owner", ANN, browser="Firefox"), sessions.open("owner", ANN)
    found = sessions.find(here)
    assert found
    listed = {one.session_id: (one.address, one.browser) for one in sessions.of_user("owner")}
    assert len(listed) == 2
    assert listed[found.session_id] == ("10.0.0.1", "Firefox")
    assert passwords.change("owner", "one", "two", ANN, found.session_id) == 1
    assert sessions.find(here)
    assert sessions.find(there) is None
    with pytest.raises(NotFound):
        passwords.change("owner", "one", "three", ANN, found.session_id)
    other = sessions.open("owner", ANN)
    [theirs] = [one for one in sessions.of_user("owner") if one.session_id != found.session_id]
    directory.users.add("bob")
    assert sessions.close_one("bob", theirs.session_id, ANN) == 0
    assert sessions.close_one("owner", theirs.session_id, ANN) == 1
    assert sessions.find(other) is None


async def _outcome(directory: Directory, name: str, password: str, address: str) -> str:
    try:
        return (await directory.password_gate.admit(name, password, address)).user_id
    except (KeyInvalid, TooManyWrongKeys) as error:
        return type(error).__name__


@pytest.mark.parametrize("kind", ["sqlite"])
def test_guessing_is_slowed_by_name_and_by_address(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.passwords.choose(directory.passwords.new_first_link(), "right", "")
    # What hashing costs is seen above; here it is counted who is let through to it.
    monkeypatch.setattr(password_gate, "matches", lambda password, stored: password == stored)
    monkeypatch.setattr(password_gate, "is_outdated", lambda stored: False)

    async def guess() -> None:
        assert await _outcome(directory, "owner", "right", "10.0.0.1") == "owner"
        for number in range(10):
            assert await _outcome(directory, "owner", "wrong", f"10.0.1.{number}") == "KeyInvalid"
        # The name waits, wherever it is tried from; others do not.
        assert await _outcome(directory, "owner", "right", "10.0.0.1") == "TooManyWrongKeys"
        assert await _outcome(directory, "nobody", "right", "10.0.0.1") == "KeyInvalid"
        for number in range(60):
            await _outcome(directory, f"name{number}", "wrong", "10.0.2.1")
        assert await _outcome(directory, "fresh", "wrong", "10.0.2.1") == "TooManyWrongKeys"

    asyncio.run(guess())


@pytest.mark.parametrize("kind", ["sqlite"])
def test_only_so_many_wait_for_their_password_to_be_hashed(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, done = password_gate.AT_A_TIME + password_gate.WAITING_MAX, threading.Event()
    monkeypatch.setattr(password_gate, "matches", lambda password, stored: not done.wait(30))

    async def crowd() -> list[BaseException | object]:
        gate = directory.password_gate
        guesses = [gate.admit(f"name{n}", "wrong", f"10.0.{n}.1") for n in range(room + 5)]
        tasks = [asyncio.create_task(guess) for guess in guesses]
        while sum(task.done() for task in tasks) < 5:
            await asyncio.sleep(0.01)
        done.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = [type(outcome) for outcome in asyncio.run(asyncio.wait_for(crowd(), 60))]
    assert (outcomes.count(Overloaded), outcomes.count(KeyInvalid)) == (5, room)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_password_is_hashed_again_with_todays_parameters(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password_hash, "_MEMORY_KIB", 64)
    directory.passwords.choose(directory.passwords.new_first_link(), hashed("good enough"), "")
    monkeypatch.setattr(password_hash, "_MEMORY_KIB", 128)
    assert asyncio.run(_outcome(directory, "owner", "good enough", "10.0.0.1")) == "owner"
    stored = directory.passwords.stored("owner")[1]
    assert stored.startswith("$argon2id$v=19$m=128,")
    assert matches("good enough", stored)


def test_two_first_links_make_one_password(directory: Directory) -> None:
    one, other = directory.passwords.new_first_link(), directory.passwords.new_first_link()
    directory.passwords.choose(one, "mine", "")
    with pytest.raises((NotFound, Conflict)):
        directory.passwords.choose(other, "theirs", "")
    assert directory.passwords.stored("owner")[1] == "mine"
