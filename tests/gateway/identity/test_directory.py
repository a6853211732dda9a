"""Keys, users, limits and the audit log on both databases."""

import asyncio
import threading
import time
from dataclasses import asdict

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.errors import TooManyWrongKeys
from gateway.identity.audit import Actor, Filter
from gateway.identity.caller import Caller
from gateway.identity.directory import Directory
from gateway.identity.gate import ADDRESSES_MAX, Gate, WrongKeys
from gateway.identity.key_cache import CACHE_MAX, CACHE_S
from gateway.identity.key_rows import KeyTerms
from gateway.identity.quotas import parse_quota
from gateway.quota import Quota
from runtime.errors import Conflict, KeyInvalid, NotFound, RequestInvalid

ANN = Actor("user:ann", "10.0.0.9")


def test_a_caller_has_all_that_key_user_and_organization_say(directory: Directory) -> None:
    directory.users.add_organization("lab", "Vision lab", ANN)
    directory.users.add("bob", organization="Vision lab", role="seller", by=ANN)
    terms = KeyTerms(("m/1", "m,2"), ("eu",), "internal", 10, None)
    issued = directory.keys.issue("k", ("pool",), user_id="bob", department="lab", terms=terms, by=ANN)
    limits = {
        Quota(f"key:{issued.row.key_id}", "requests", 60, "minute"),
        Quota("user:bob", "tokens", 1000, "day", "m/1"),
        Quota("organization:lab", "spend", 5 * 10**9, "month"),
    }
    for quota in (*limits, Quota("organization:home", "concurrency", 1)):
        directory.quotas.set(quota, ANN)
    caller = directory.keys.find(issued.token)
    assert caller
    assert (caller.organization_id, caller.role, caller.priority) == ("lab", "seller", 10)
    assert (caller.models, caller.regions) == (frozenset({"m/1", "m,2"}), frozenset({"eu"}))
    assert caller.privacy == "internal"
    assert set(caller.quotas) == limits
    directory.quotas.set(Quota("user:bob", "tokens", 7, "day", "m/1"), ANN)
    directory.quotas.remove(Quota("organization:lab", "spend", 0, "month"), ANN)
    directory.keys.catch_up()
    changed = directory.keys.find(issued.token)
    assert changed
    assert [quota.amount for quota in changed.quotas if quota.scope == "user:bob"] == [7]
    assert len(changed.quotas) == 2
    assert {quota.scope for quota in directory.quotas.rows("lab")} == {q.scope for q in changed.quotas}


def _let_pass(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day, for everybody."""
    now_ns = time.time_ns() + int(seconds * 10**9)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)


def test_a_rotated_key_keeps_its_id_and_its_old_text_for_the_grace_time(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = directory.keys.issue("k", ("pool",))
    second = directory.keys.rotate(first.row.prefix, 3600, ANN)
    assert second.row.key_id == first.row.key_id
    callers = {directory.keys.find(token) for token in (first.token, second.token)}
    assert {caller and caller.key_id for caller in callers} == {first.row.key_id}
    _let_pass(3601, monkeypatch)
    directory.keys.catch_up()
    assert directory.keys.find(first.token) is None
    assert directory.keys.find(second.token)
    with pytest.raises(NotFound):
        directory.keys.rotate(first.row.prefix, 1)


def test_a_key_ends_when_it_expires_even_while_it_is_cached(
    directory: Directory, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would be known for longer, were it valid for longer.
    terms = KeyTerms(expires_ns=time.time_ns() + int((CACHE_S - 1) * 10**9))
    token = directory.keys.issue("k", ("pool",), terms=terms).token
    assert directory.keys.find(token)
    clock[0] += CACHE_S - 0.99
    assert directory.keys.cached(token) is None
    clock[0] += CACHE_S
    _let_pass(CACHE_S, monkeypatch)
    assert directory.keys.find(token) is None


def test_a_removed_user_has_no_key_and_is_the_same_user_when_back(directory: Directory) -> None:
    directory.users.add("bob", by=ANN)
    token = directory.keys.issue("k", ("pool",), user_id="bob").token
    opened = directory.sessions.open("bob", ANN)
    assert directory.sessions.find(opened)
    directory.users.remove("bob", ANN)
    directory.keys.catch_up()
    assert directory.keys.find(token) is None
    assert directory.sessions.find(opened) is None
    with pytest.raises(Conflict, match="users add bob"):
        directory.keys.issue("k", ("pool",), user_id="bob")
    directory.users.add("bob", by=ANN)
    directory.keys.catch_up()
    assert directory.keys.find(token)


def test_the_last_admin_of_the_instance_stays(directory: Directory) -> None:
    with pytest.raises(Conflict, match="last instance admin"):
        directory.users.set_role("owner", "member")
    with pytest.raises(Conflict, match="own account"):
        directory.users.remove("owner")
    directory.users.add("eve", role="admin")
    start, refused = threading.Barrier(2), []

    def leave(user_id: str) -> None:
        start.wait(60)
        try:
            directory.users.set_role(user_id, "member")
        except Conflict:
            refused.append(user_id)

    threads = [threading.Thread(target=leave, args=(user,)) for user in ("owner", "eve")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(refused) == 1
    assert [user.user_id for user in directory.users.users() if user.role == "admin"] == refused


@pytest.mark.parametrize(
    ("measure", "span", "amount", "field"),
    [
        ("requests", None, "1", "span"),
        ("concurrency", "day", "1", "span"),
        ("spend", "minute", "1", "span"),
        ("spend", "day", "1e3", "amount"),
        ("spend", "day", "-1", "amount"),
        ("tokens", "day", "1.5", "amount"),
        ("tokens", "day", "٣", "amount"),
        ("tokens", "day", "9" * 16, "amount"),
    ],
)
def test_what_is_no_limit_is_refused_by_its_field(measure: str, span: str, amount: str, field: str) -> None:
    with pytest.raises(RequestInvalid) as refusal:
        parse_quota("key:x", measure, amount, span, None)  # type: ignore[arg-type]
    assert refusal.value.param == field


def test_limits_of_unknown_scopes_and_taken_names_are_refused(directory: Directory) -> None:
    for scope in ("key:none", "user:nobody", "organization:x"):
        with pytest.raises(NotFound):
            directory.quotas.set(Quota(scope, "requests", 1, "day"))
    with pytest.raises(Conflict):
        directory.users.add_organization("home")
    with pytest.raises(Conflict):
        directory.users.add_organization("other", "home")
    with pytest.raises(Conflict):
        directory.users.add("owner")
    with pytest.raises(RequestInvalid):
        directory.users.add("two words")
    assert directory.audit.entries(Filter()) == []


def test_each_action_is_in_the_log_once_and_says_what_changed(directory: Directory) -> None:
    directory.users.add("bob", by=ANN)
    directory.users.set_role("bob", "seller", ANN)
    directory.users.set_role("bob", "seller", ANN)
    issued = directory.keys.issue("k", ("pool",), user_id="bob", by=ANN)
    directory.keys.change(issued.row.key_id, KeyTerms(priority=3), by=ANN)
    rotated = directory.keys.rotate(issued.row.key_id, 60, ANN)
    directory.keys.revoke(issued.row.key_id, ANN)
    directory.keys.revoke(issued.row.key_id, ANN)
    entries = directory.audit.entries(Filter())
    actions = ["user.add", "user.role", "key.create", "key.change", "key.rotate", "key.revoke"]
    assert [entry.action for entry in reversed(entries)] == actions
    assert {(entry.actor, entry.address) for entry in entries} == {("user:ann", "10.0.0.9")}
    role = directory.audit.entries(Filter(action="user.role"))[0]
    assert role.before
    assert role.after
    assert (role.before["role"], role.after["role"]) == ("member", "seller")
    written = str([asdict(entry) for entry in entries])
    assert issued.token[11:] not in written
    assert rotated.token[11:] not in written
    page = directory.audit.entries(Filter(), limit=2)
    rest = directory.audit.entries(Filter(), before_seq=page[-1].seq)
    assert page + rest == entries


@pytest.mark.parametrize(
    "forged",
    [
        "UPDATE audit_entry SET actor = 'user:eve'",
        "DELETE FROM audit_entry",
        "INSERT OR REPLACE INTO audit_entry SELECT seq, 0, 'x', '', 'x', 'x', 'home', NULL, NULL FROM audit_entry",
        "TRUNCATE audit_entry",
    ],
)
def test_the_log_cannot_be_rewritten(directory: Directory, forged: str) -> None:
    directory.users.add("bob", by=ANN)
    with pytest.raises(DBAPIError), directory.write() as session, session.begin():
        session.execute(text(forged))
    assert [entry.actor for entry in directory.audit.entries(Filter())] == ["user:ann"]


def test_what_is_booked_elsewhere_is_written_down_once_by_however_many(directory: Directory) -> None:
    """A caller that died after the booking asks again, under the same name."""
    by, names = Actor("machine"), ("100%_a", "100%_A", "b")

    def write_down(name: str) -> None:
        directory.audit.add_once(by, "credit.add", "user:ann", {"id": name, "amount": "1"}, named_by="id")

    threads = [threading.Thread(target=write_down, args=(name,)) for name in names * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    entries = directory.audit.entries(Filter(action="credit.add"))
    assert sorted(str((entry.after or {})["id"]) for entry in entries) == sorted(names)


def test_a_session_ends_by_sign_out_by_an_admin_and_with_its_key(directory: Directory) -> None:
    issued = directory.keys.issue("k", ("pool",))
    one, two, with_key = (
        directory.sessions.open("owner", ANN),
        directory.sessions.open("owner", ANN),
        directory.sessions.open("owner", ANN, issued.row.key_id),
    )
    found = [directory.sessions.find(text) for text in (one, two, with_key)]
    assert [who and who.caller.key_id for who in found] == ["", "", issued.row.key_id]
    assert found[0]
    assert directory.sessions.is_own_form(one, found[0].csrf)
    assert not directory.sessions.is_own_form(two, found[0].csrf)
    directory.sessions.close(one)
    directory.keys.revoke(issued.row.key_id)
    assert [bool(directory.sessions.find(text)) for text in (one, two, with_key)] == [False, True, False]
    assert directory.sessions.close_all("owner", ANN) == 2
    assert directory.sessions.find(two) is None
    for wrong in ("", "x", "\x00", "x" * 1000):
        assert directory.sessions.find(wrong) is None


def test_wrong_keys_are_remembered_for_a_moment_and_within_bounds(
    directory: Directory, clock: list[float]
) -> None:
    token = directory.keys.issue("k", ("pool",)).token
    for number in range(3):
        assert directory.keys.find(f"mr-{number}") is None
    keys = directory.keys
    keys._wrong.update({f"mr-x{number}": 1e9 for number in range(CACHE_MAX - 3)})
    assert keys.find("mr-other") is None
    assert len(keys._wrong) == CACHE_MAX
    assert {"mr-1", "mr-other"} <= keys._wrong.keys()
    assert keys.find("x" * 100_000) is None
    assert keys.find(token)


def test_an_address_that_sends_wrong_keys_waits_and_others_do_not(
    directory: Directory, clock: list[float]
) -> None:
    gate = Gate(directory.keys, WrongKeys(3, clock=lambda: clock[0]))
    known, fresh = (directory.keys.issue(name, ("pool",)).token for name in "ab")

    async def outcomes(address: str, *tokens: str) -> list[str]:
        found = []
        for token in tokens:
            try:
                found.append((await gate.admit(token, address)).key_prefix)
            except (KeyInvalid, TooManyWrongKeys) as error:
                found.append(type(error).__name__)
        return found

    asyncio.run(outcomes("10.0.0.1", known))
    wrong = [f"mr-{number}" for number in range(5)]
    assert asyncio.run(outcomes("10.0.0.1", *wrong)) == ["KeyInvalid"] * 3 + ["TooManyWrongKeys"] * 2
    clock[0] += CACHE_S + 1
    # What was valid here is asked for again; what never was waits with the address.
    assert asyncio.run(outcomes("10.0.0.1", known, fresh)) == [known[:10], "TooManyWrongKeys"]
    assert asyncio.run(outcomes("10.0.0.2", fresh)) == [fresh[:10]]
    clock[0] += 20
    assert asyncio.run(outcomes("10.0.0.1", *wrong[:2])) == ["KeyInvalid", "TooManyWrongKeys"]


def test_the_table_of_addresses_is_bounded_and_a_network_is_one_address() -> None:
    wrong = WrongKeys(1, clock=lambda: 0.0)
    wrong.failed("2001:db8::1")
    with pytest.raises(TooManyWrongKeys) as refusal:
        wrong.allow("2001:db8::ffff")
    assert refusal.value.retry_after_s == 60
    wrong.allow("2001:db8:0:1::1")
    for number in range(ADDRESSES_MAX):
        wrong.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    wrong.allow("2001:db8::1")
    wrong.allow("no address")


def test_many_that_ask_for_one_key_ask_the_database_once(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = directory.keys.issue("k", ("pool",)).token
    find, asked = directory.keys.find, []

    def counted(token: str) -> Caller | None:
        asked.append(token)
        return find(token)

    monkeypatch.setattr(directory.keys, "find", counted)

    async def ask() -> list[str]:
        callers = await asyncio.gather(*(directory.gate.admit(token, "10.0.0.1") for _ in range(50)))
        return [caller.key_prefix for caller in callers]

    assert set(asyncio.run(ask())) == {token[:10]}
    assert asked == [token]


def test_two_who_do_the_same_at_once_are_both_answered(directory: Directory) -> None:
    start, outcomes = threading.Barrier(4), []

    def act(number: int) -> None:
        start.wait(60)
        try:
            directory.users.add("bob")
            outcomes.append("made")
        except Conflict:
            outcomes.append("refused")
        directory.keys.issue(f"k{number}", ("pool",), user_id="bob")
        try:
            directory.quotas.set(Quota("user:bob", "requests", number, "day"))
        except Conflict:
            outcomes.append("limit refused")

    threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    made = directory.audit.entries(Filter(action="user.add"))
    assert (outcomes.count("made"), outcomes.count("refused"), len(made)) == (1, 3, 1)
    assert len(directory.keys.rows(user_id="bob")) == 4
    assert len(directory.quotas.of(("user:bob",))) == 1
