"""Machines find their cluster by mDNS, trust only its certificates, and say what to do if none answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import structlog

from cluster import wire
from cluster.controller import Controller
from cluster.errors import LinkLost, PeerRejected, WrongPeer
from cluster.joining.discovery import Announcement, look_for
from cluster.joining.enrolment import join
from cluster.joining.whereabouts import ControllerSearch
from cluster.net.channel import Channel, ChannelServer, dial
from cluster.trust.addresses import Target, is_reachable, own_addresses
from cluster.trust.authority import Authority
from cluster.trust.identity import Identity
from tests.cluster.test_joining import until
from tests.clusters import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer: on a busy machine announcements take a while. A found controller ends the wait."""
    monkeypatch.setattr("cluster.joining.whereabouts.LOOK_S", PATIENCE_S)
    monkeypatch.setattr("cluster.joining.discovery._ASK_MS", PATIENCE_S * 1000)


# Multicast that stays on this machine.
HERE = ["127.0.0.1"]


@asynccontextmanager
async def announced(folder: Path, fingerprint: str | None = None) -> AsyncIterator[tuple[Controller, str, int]]:
    """Run a controller that announces itself or a foreign fingerprint. Yield it, the fingerprint and the port."""
    running = Controller(folder)
    port = await running.start("127.0.0.1", 0)
    own = Authority.open(folder / "authority").fingerprint
    announcement = asyncio.create_task(
        Announcement("box", "127.0.0.1", port, fingerprint or own, interfaces=HERE).run()
    )
    try:
        yield running, own, port
    finally:
        announcement.cancel()
        await asyncio.gather(announcement, return_exceptions=True)
        await running.stop()


def nearby(file: Path, given: Target | None = None) -> ControllerSearch:
    return ControllerSearch(given, file, discovery=True, interfaces=HERE)


async def test_a_token_is_enough_and_an_impostor_gets_nothing(tmp_path: Path) -> None:
    """Another cluster announces our fingerprint and answers, but its certificate is not the pinned one."""
    tried: list[int] = []
    async with announced(tmp_path / "ours") as (ours, pinned, port):
        token = ours.new_token()

        async def attempt(target: Target) -> Identity:
            tried.append(target.port)
            return await join(target, token, tmp_path / "node", "n")

        async with announced(tmp_path / "impostor", fingerprint=pinned) as (_, _, wrong):
            with pytest.raises(WrongPeer):
                await join(Target("127.0.0.1", wrong), token, tmp_path / "x", "x")
            identity = await nearby(tmp_path / "controller.json").reach(pinned, attempt)
    assert identity.exists
    assert tried[-1] == port
    assert not (tmp_path / "x").exists()


async def hang_up(channel: Channel) -> None:
    await channel.receive(PATIENCE_S)


async def refuse(channel: Channel) -> None:
    await channel.receive(PATIENCE_S)
    await channel.send(wire.Refused("this join token was already used"))


async def show_garbage(channel: Channel) -> None:
    await channel.receive(PATIENCE_S)
    await channel.send(wire.Authority("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))


@pytest.mark.parametrize("behave", [hang_up, refuse, show_garbage])
async def test_a_foreign_answer_does_not_end_the_search(
    tmp_path: Path, behave: Callable[[Channel], Awaitable[None]]
) -> None:
    stranger = Authority.open(tmp_path / "foreign").issue_identity(tmp_path / "stranger", "gateway", "stranger")
    door = ChannelServer("stranger", stranger, behave, newcomers=True)
    wrong = Target("127.0.0.1", await door.open("127.0.0.1", 0))
    file = tmp_path / "controller.json"
    try:
        async with announced(tmp_path / "c") as (running, pinned, port):
            file.write_bytes(msgspec.json.encode(Target("127.0.0.1", port)))
            token = running.new_token()
            where = ControllerSearch(wrong, file)
            assert (await where.reach(pinned, lambda at: join(at, token, tmp_path / "n", "n"))).exists
    finally:
        await door.close()


async def test_no_second_authority_is_trusted_with_the_right_one(tmp_path: Path) -> None:
    """Our authority's certificate is public. A peer that shows it followed by another one gets no token."""
    foreign = Authority.open(tmp_path / "foreign")
    stranger = foreign.issue_identity(tmp_path / "stranger", "gateway", "stranger")
    ours = Authority.open(tmp_path / "ours")
    heard: list[wire.Message] = []

    async def pose(channel: Channel) -> None:
        while True:
            message, _ = await channel.receive(PATIENCE_S)
            heard.append(message)
            await channel.send(wire.Authority(ours.certificate_pem + foreign.certificate_pem))

    door = ChannelServer("stranger", stranger, pose, newcomers=True)
    try:
        target = Target("127.0.0.1", await door.open("127.0.0.1", 0))
        with pytest.raises(WrongPeer, match="CERTIFICATE_VERIFY_FAILED"):
            await join(target, ours.new_token(), tmp_path / "n", "n")
    finally:
        await door.close()
    assert [type(message) for message in heard] == [wire.AskAuthority]


async def test_a_controller_that_moved_is_found_again(tmp_path: Path) -> None:
    file = tmp_path / "controller.json"
    async with announced(tmp_path / "c") as (running, pinned, first):
        identity = await join(Target("127.0.0.1", first), running.new_token(), tmp_path / "n", "n")

    async def attempt(target: Target) -> Channel:
        return await dial(target.host, target.port, identity.client_context())

    async with announced(tmp_path / "c") as (_, _, second):
        assert second != first
        channel = await nearby(file, given=Target("127.0.0.1", first)).reach(pinned, attempt)
        await channel.close()
        # The address is stored, so the next start needs no announcement.
        channel = await ControllerSearch(None, file).reach(pinned, attempt)
        assert channel.address == f"127.0.0.1:{second}"
        await channel.close()


async def test_a_failed_search_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.joining.whereabouts.LOOK_S", 0.3)

    async def attempt(target: Target) -> None:
        raise AssertionError(f"{target} is another cluster")

    async with announced(tmp_path / "another"):
        with pytest.raises(LinkLost, match=r"by mDNS within .* --controller HOST:PORT"):
            await nearby(tmp_path / "none").reach("0" * 32, attempt)
    with pytest.raises(LinkLost, match="no controller address is known"):
        await ControllerSearch(None, tmp_path / "none").reach("0" * 32, attempt)


async def test_the_right_controllers_refusal_is_final(tmp_path: Path) -> None:
    async with announced(tmp_path / "c") as (running, pinned, port):
        token = running.new_token()
        await join(Target("127.0.0.1", port), token, tmp_path / "a", "a")
        with pytest.raises(PeerRejected, match="already used"):
            await nearby(tmp_path / "f").reach(pinned, lambda target: join(target, token, tmp_path / "b", "b"))


# The library leaves the socket of a start that failed to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_node_survives_without_multicast() -> None:
    announcement = Announcement("box", "192.0.2.77", 1, "0" * 32, interfaces=["192.0.2.77"])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await announcement.run()
    assert own_addresses("192.0.2.77") == ("192.0.2.77",)


# As above.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_failed_announcement_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network comes up later. Until then the missing network is logged once."""
    monkeypatch.setattr("cluster.joining.discovery._LOOK_AGAIN_S", 0.05)
    announcement = Announcement("box", "127.0.0.1", 7, "5" * 32, interfaces=["192.0.2.77"])
    with structlog.testing.capture_logs() as logs:
        running = asyncio.create_task(announcement.run())
        await until(lambda: bool(logs))
        await asyncio.sleep(0.3)
        assert [line["event"] for line in logs] == ["cluster not announced"]
        announcement.interfaces = HERE
        async with contextlib.aclosing(look_for("5" * 32, PATIENCE_S, HERE)) as found:
            assert await anext(found) == Target("127.0.0.1", 7)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert not is_reachable("127.0.0.1")
