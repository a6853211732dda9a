"""The controller's connections with nodes: a flood ends its own connection, and every fetch gets an answer."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cluster import wire
from cluster.control.answers import UNREAD_MAX
from cluster.control.parts import FETCHES_MAX, ReadPart
from cluster.control.roster import Roster
from cluster.control.subscription import Subscription
from cluster.errors import LinkLost, ModelNotFound
from cluster.joining.handshake import PROGRAM
from cluster.net.channel import Channel, ChannelServer, open_channel
from cluster.nodes.probe import probe_machine
from cluster.trust.authority import Authority
from cluster.trust.identity import NodeId
from tests.cluster.test_joining import node_id
from tests.clusters import PATIENCE_S

pytestmark = pytest.mark.anyio

LACKING, SLOW = "0" * 64, "1" * 64


class Hub:
    """A roster whose answers are not read, and machines that connect to it."""

    def __init__(self, folder: Path, read_part: ReadPart) -> None:
        self.folder = folder
        self.authority = Authority.open(folder / "authority")
        self.identity = self.authority.issue_identity(folder / "gateway", "gateway", "gateway")
        self.roster = Roster(self.authority, read_part)
        self.subscription = self.roster.subscribe("a")
        self.door = ChannelServer("controller", self.identity, self.roster.serve)
        self.port = 0

    async def connect(self, name: str) -> tuple[NodeId, Channel]:
        identity = self.authority.issue_identity(self.folder / name, "node", name)
        address = wire.Address(node_id(self.identity), "127.0.0.1", self.port)
        channel = await open_channel(address, identity)
        channel.payload_bytes_max = 100
        hello = wire.Hello(name, probe_machine(), program=PROGRAM, protocol=wire.PROTOCOL_VERSION)
        await channel.send(hello)
        for _ in range(2):
            await channel.receive(PATIENCE_S)
        return node_id(identity), channel


def read_nothing(sha256: str, offset: int) -> tuple[bytes, int]:
    raise ModelNotFound(f"no model has anything with sha256 {sha256}")


@asynccontextmanager
async def hub(folder: Path, read_part: ReadPart = read_nothing) -> AsyncIterator[Hub]:
    running = Hub(folder, read_part)
    running.port = await running.door.open("127.0.0.1", 0)
    try:
        yield running
    finally:
        await running.door.close()


async def last_refusal(channel: Channel) -> str:
    while True:
        message, _ = await channel.receive(PATIENCE_S)
        if isinstance(message, wire.Refused):
            return message.reason


async def test_a_flooding_machine_is_disconnected_and_others_are_served(tmp_path: Path) -> None:
    async with hub(tmp_path) as running:
        flooder, flood = await running.connect("flooder")
        honest, channel = await running.connect("honest")
        for epoch in range(2 * UNREAD_MAX):
            try:
                await flood.send(wire.Prepared(epoch, deployment="a"))
            except LinkLost:
                break
        assert f"flooder has {UNREAD_MAX} unread answers" in await last_refusal(flood)
        await channel.send(wire.Prepared(7, deployment="a"))
        heard: list[tuple[NodeId, wire.Message]] = []
        async with asyncio.timeout(PATIENCE_S):
            while (honest, wire.Prepared(7, deployment="a")) not in heard:
                member, message = await running.subscription.answers.get()
                heard.append((member.node_id, message))
        of_flooder = [message for sender, message in heard if sender == flooder]
        assert len(of_flooder) == UNREAD_MAX + 1
        assert isinstance(of_flooder[-1], wire.Failed)
        assert flooder not in {member.node_id for member in running.roster.membership.present()}
        # Reading makes room again, so the machine may come back.
        _, again = await running.connect("flooder-again")
        await again.close()
        await channel.close()
        await flood.close()


async def test_a_machine_renamed_during_its_welcome_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub(tmp_path) as running:
        send = Channel.send

        async def send_and_rename(channel: Channel, message: wire.Message) -> None:
            await send(channel, message)
            if isinstance(message, wire.Welcome):
                [node] = running.authority.machines.records
                running.roster.rename(node, "mill")

        monkeypatch.setattr(Channel, "send", send_and_rename)
        _, channel = await running.connect("laptop")
        async with asyncio.timeout(PATIENCE_S):
            while not (present := running.roster.membership.present()):
                await asyncio.sleep(0.01)
        assert [member.name for member in present] == ["mill"]
        await channel.close()


async def test_every_fetch_is_answered(tmp_path: Path) -> None:
    released = threading.Event()

    def read_part(sha256: str, offset: int) -> tuple[bytes, int]:
        if sha256 == LACKING:
            raise ModelNotFound("nobody has it")
        released.wait(PATIENCE_S)
        return b"part", offset + 4

    async with hub(tmp_path, read_part) as running:
        _, channel = await running.connect("node")
        await channel.send(wire.Fetch(LACKING, 3))
        assert await channel.receive(PATIENCE_S) == (wire.NoPart(LACKING, 3, "nobody has it"), b"")
        for offset in range(FETCHES_MAX + 1):
            await channel.send(wire.Fetch(SLOW, offset))
        surplus, _ = await channel.receive(PATIENCE_S)
        assert isinstance(surplus, wire.NoPart)
        assert surplus.offset == FETCHES_MAX
        assert "other parts are already on their way" in surplus.reason
        released.set()
        parts = [(await channel.receive(PATIENCE_S))[0] for _ in range(FETCHES_MAX)]
        assert {part.offset for part in parts if isinstance(part, wire.Part)} == set(range(FETCHES_MAX))
        await channel.close()


async def heard(deployment: Subscription, message: wire.Message) -> list[wire.Message]:
    """Return what the deployment hears up to this message."""
    told: list[wire.Message] = []
    async with asyncio.timeout(PATIENCE_S):
        while message not in told:
            told.append((await deployment.answers.get())[1])
    return told


async def test_deployments_hear_only_their_own_answers_and_every_loss(tmp_path: Path) -> None:
    async with hub(tmp_path) as running:
        other = running.roster.subscribe("b")
        _, channel = await running.connect("desk")
        for deployment in ("a", "b", "gone", "a"):
            await channel.send(wire.Prepared(1, deployment=deployment))
        await channel.send(wire.Prepared(2, deployment="b"))
        told = await heard(other, wire.Prepared(2, deployment="b"))
        assert [message for message in told if not isinstance(message, wire.Hello)] == [
            wire.Prepared(1, deployment="b"),
            wire.Prepared(2, deployment="b"),
        ]
        await channel.send(wire.Prepared(1, deployment="x" * 301))
        assert "length <= 300" in await last_refusal(channel)
        for subscription, answers in ((running.subscription, 2), (other, 0)):
            messages: list[wire.Message] = []
            async with asyncio.timeout(PATIENCE_S):
                while not (messages and isinstance(messages[-1], wire.Failed)):
                    messages.append((await subscription.answers.get())[1])
            assert sum(isinstance(message, wire.Prepared) for message in messages) == answers
        await channel.close()


async def test_a_machine_unloads_a_deployment_that_is_gone(tmp_path: Path) -> None:
    async with hub(tmp_path) as running:
        _, channel = await running.connect("desk")
        reports = {"": wire.ProcessReport(), "a": wire.ProcessReport(5), "gone": wire.ProcessReport(7)}
        orders: list[wire.Message] = []
        for _ in range(2):
            await channel.send(wire.Heartbeat(2**20, reports))
            while not isinstance(order := (await channel.receive(PATIENCE_S))[0], wire.Tick):
                orders.append(order)
        assert orders == [wire.Unload(wire.ANY_EPOCH, deployment="gone")]
        [member] = running.subscription.present()
        assert member.machine.memory_usable_bytes == 2**20 + 5
        [shared] = running.subscription.available("gone")
        assert shared.machine.memory_usable_bytes == 2**20 + 12
        await channel.close()
