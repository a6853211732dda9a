"""Damaged models, forged facts, garbage and floods from any peer are refused while the cluster keeps serving."""

import asyncio
import contextlib
import json
import resource
import shutil
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import structlog
from msgspec.structs import replace

from cluster import wire
from cluster.control.membership import HEARTBEAT_MS
from cluster.errors import LinkError, LinkLost, ModelError
from cluster.joining.enrolment import join
from cluster.joining.handshake import PROGRAM
from cluster.machine import Machine
from cluster.models.manifest import read_manifest
from cluster.models.store import ModelCopy, read_part
from cluster.net.channel import Channel, open_channel
from cluster.net.channel import dial as dial_channel
from cluster.net.transport import Link, Listener, dial
from cluster.nodes.file_server import FileServer
from cluster.nodes.node import Agent
from cluster.nodes.node_options import NodeOptions
from cluster.nodes.probe import probe_machine
from cluster.trust.addresses import Target
from cluster.trust.authority import Authority
from cluster.trust.identity import Identity
from tests.cluster.test_joining import node_id, until
from tests.clusters import DEMO_MODEL, PATIENCE_S, Cluster, child, running_cluster

pytestmark = pytest.mark.anyio

HALF_OPEN = 1000
GARBAGE = bytes(range(256)) * 4
OVERSIZED = wire.HEADER.pack(b"MRCW", wire.PROTOCOL_VERSION, 0, 2**32 - 1, 2**32 - 1)
FOREIGN = wire.HEADER.pack(b"MRCW", wire.PROTOCOL_VERSION + 1, 0, 2, 0) + b"\x81\xa4"


@dataclass
class Stage:
    """The target of every attack: a cluster that answers all the time, and a rogue with a valid certificate."""

    cluster: Cluster
    folder: Path
    rogue: Identity
    expected: str
    answers: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def target(self) -> Target:
        return Target("127.0.0.1", self.cluster.port)

    async def keep_answering(self) -> None:
        while True:
            answer = await self.cluster.ask("The river", max_tokens=12)
            self.answers += 1
            if answer.texts[0] != self.expected:
                self.wrong.append(answer.texts[0])
            await asyncio.sleep(0.3)

    async def connect(self) -> Channel:
        return await dial_channel(self.target.host, self.target.port, self.rogue.client_context())

    def stage_address(self) -> wire.Address:
        """Return the address where the second node's stage listens for its upstream."""
        deployment = self.cluster.controller.chat.deployment
        assert deployment
        member = deployment.plan.stages[1].member
        stage = child(self.cluster.node_process(int(member.name.removeprefix("node-"))), "stage")
        assert stage
        [port] = [c.laddr.port for c in stage.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        return wire.Address(member.node_id, "127.0.0.1", port)


async def refusal(channel: Channel) -> str:
    """Return the reason with which the peer ends the connection."""
    try:
        while True:
            message, _ = await channel.receive(PATIENCE_S)
            if isinstance(message, wire.Refused):
                return message.reason
    finally:
        await channel.close()


def hello(name: str, **changes: object) -> wire.Hello:
    """Return the hello of a machine without memory, so that plans leave it out."""
    machine: Machine = replace(probe_machine(), memory_usable_bytes=2**20)
    known = {key: value for key, value in changes.items() if hasattr(machine, key)}
    rest = {key: value for key, value in changes.items() if key not in known}
    fields: dict[str, object] = {"program": PROGRAM, "protocol": wire.PROTOCOL_VERSION} | rest
    return wire.Hello(name, replace(machine, **known), **fields)  # type: ignore[arg-type]


async def garbage_at_the_controller(stage: Stage) -> None:
    for bytes_, reason in ((GARBAGE, "not a frame"), (OVERSIZED, "larger than"), (FOREIGN, "speaks protocol")):
        channel = await stage.connect()
        channel.writer.write(bytes_)
        assert reason in await refusal(channel)
        channel = await stage.connect()
        await channel.send(hello("rogue"))
        channel.writer.write(bytes_)
        assert reason in await refusal(channel)


async def lies_in_a_hello(stage: Stage) -> None:
    for changes, reason in (
        ({"program": "0.0.1"}, "runs Millrace 0.0.1"),
        ({"memory_total_bytes": 2**63}, f"a memory of {2**63} bytes"),
        ({"memory_usable_bytes": -1}, "claims -1 usable bytes"),
    ):
        channel = await stage.connect()
        await channel.send(hello("rogue", **changes))
        assert reason in await refusal(channel)


async def lies_in_heartbeats(stage: Stage) -> None:
    for usable_bytes in (2**63, -1):
        channel = await stage.connect()
        await channel.send(hello("rogue"))
        await channel.send(wire.Heartbeat(usable_bytes))
        assert f"claims {usable_bytes} usable bytes" in await refusal(channel)
    channel = await stage.connect()
    await channel.send(hello("rogue"))
    with contextlib.suppress(LinkLost):
        for _ in range(1000):
            await channel.send(wire.Heartbeat(2**20))
    assert f"one every {HEARTBEAT_MS} ms is agreed" in await refusal(channel)


async def garbage_at_a_stage_port(stage: Stage) -> None:
    """A foreign machine may have a valid certificate, and a neighbour's certificate could have been stolen."""
    address = stage.stage_address()
    deployment = stage.cluster.controller.chat.deployment
    assert deployment
    upstream = deployment.plan.stages[0].member
    neighbour = Identity(stage.folder / "nodes" / upstream.name / "identity")
    hellos = [wire.encode(wire.PipelineHello(epoch)) for epoch in (0, deployment.epoch)]
    for identity in (stage.rogue, neighbour):
        for bytes_ in (GARBAGE, OVERSIZED, FOREIGN, *hellos):
            link = await asyncio.to_thread(dial, address, identity)
            await asyncio.to_thread(send_raw, link, bytes_)
            with contextlib.closing(link), pytest.raises(LinkError):
                await asyncio.to_thread(link.receive)


def send_raw(link: Link, bytes_: bytes) -> None:
    link._connection.sendall(bytes_)


@contextlib.contextmanager
def half_open(port: int) -> Iterator[None]:
    """Open connections that each send a part of a message and nothing more."""
    with contextlib.ExitStack() as stack:
        for at in range(HALF_OPEN):
            plain = stack.enter_context(socket.socket())
            plain.settimeout(PATIENCE_S)
            plain.connect(("127.0.0.1", port))
            if at % 2:
                with contextlib.suppress(ConnectionError):
                    plain.sendall(b"\x16\x03\x01")
        yield


async def half_open_at_every_port(stage: Stage) -> None:
    """Complete requests are served while half-open connections occupy every port."""
    door = FileServer(stage.folder / "no-models", stage.rogue)
    files = wire.Address(node_id(stage.rogue), "127.0.0.1", await door.open("127.0.0.1"))
    partner = Identity(stage.folder / "nodes" / "node-1" / "identity")

    async def join_another() -> None:
        token = stage.cluster.controller.new_token()
        assert (await join(stage.target, token, stage.folder / token[-6:], "another")).exists

    async def link_up() -> None:
        (await asyncio.to_thread(dial, stage.stage_address(), stage.rogue)).close()

    async def ask_for_files() -> None:
        channel = await open_channel(files, partner)
        await channel.send(wire.AskHeld("0" * 64))
        assert await channel.receive(PATIENCE_S) == (wire.Held([]), b"")
        await channel.close()

    try:
        for port, attempt in (
            (stage.target.port, join_another),
            (stage.stage_address().port, link_up),
            (files.port, ask_for_files),
        ):
            with await asyncio.to_thread(enter, half_open(port)):
                async with asyncio.timeout(PATIENCE_S):
                    await attempt()
    finally:
        await door.close()


def enter(attack: contextlib.AbstractContextManager[None]) -> contextlib.ExitStack:
    with contextlib.ExitStack() as stack:
        stack.enter_context(attack)
        return stack.pop_all()


async def damaged_models(stage: Stage) -> None:
    for damage, reason in (
        (lambda folder: cut(folder / "model.safetensors"), "truncated"),
        (lambda folder: (folder / "model.safetensors").write_bytes(GARBAGE), "header"),
        (lambda folder: edit(folder / "config.json", hidden_size=-3), "hidden_size"),
        (lambda folder: edit(folder / "config.json", num_hidden_layers=99), "lacks the tensor"),
        (lambda folder: edit(folder / "config.json", num_hidden_layers=10**12), "num_hidden_layers must be 2048"),
        (lambda folder: edit(folder / "config.json", model_type="nobody"), "nobody"),
    ):
        folder = Path(shutil.copytree(DEMO_MODEL, stage.folder / "damaged"))
        damage(folder)
        with pytest.raises(ModelError, match=reason):
            await stage.cluster.controller.chat.load_model(str(folder))
        shutil.rmtree(folder)
        assert stage.cluster.controller.chat.is_ready


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


async def a_machine_with_a_corrupt_shard(stage: Stage) -> None:
    """A machine joins with a damaged copy of the model. It reports the damage and fetches the bytes again."""
    manifest = read_manifest(DEMO_MODEL, DEMO_MODEL.name)
    copy = ModelCopy(stage.folder / "far" / "models", manifest)
    for sha256 in copy.missing(list(manifest.tensors)):
        while not copy.append(sha256, *read_part(DEMO_MODEL, manifest, sha256, copy.offset(sha256))):
            pass
    for layer in range(8):
        path = copy.folder / "tensors" / manifest.tensors[f"model.layers.{layer}.mlp.up_proj.weight"].sha256
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
    options = NodeOptions(
        name="far",
        folder=str(stage.folder / "far"),
        controller=stage.target,
        token=stage.cluster.controller.new_token(),
        share=0.2,
    )
    with structlog.testing.capture_logs() as logs:
        agent = asyncio.create_task(Agent(options).run())
        try:
            # The controller logs it when a standby fails, the agent before it fetches the bytes again.
            await until(lambda: any("mlp.up_proj.weight" in str(line) for line in logs))
        finally:
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)


ATTACKS: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    garbage_at_the_controller,
    lies_in_a_hello,
    lies_in_heartbeats,
    garbage_at_a_stage_port,
    half_open_at_every_port,
    damaged_models,
    a_machine_with_a_corrupt_shard,
)


@asynccontextmanager
async def files_allowed(count: int) -> AsyncIterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(count, before[1])), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.timeout(600)
async def test_the_cluster_serves_on(tmp_path: Path) -> None:
    async with files_allowed(3 * HALF_OPEN), running_cluster(tmp_path, nodes=2) as cluster:
        expected = (await cluster.ask("The river", max_tokens=12)).texts[0]
        token = cluster.controller.new_token()
        rogue = await join(Target("127.0.0.1", cluster.port), token, tmp_path / "rogue", "rogue")
        stage = Stage(cluster, tmp_path, rogue, expected)
        answering = asyncio.create_task(stage.keep_answering())
        try:
            for attack in ATTACKS:
                before = stage.answers
                await attack(stage)
                async with asyncio.timeout(PATIENCE_S):
                    while stage.answers == before and not answering.done():
                        await asyncio.sleep(0.02)
                assert not answering.done(), f"{attack.__name__}: {answering.exception()}"
                assert not stage.wrong, attack.__name__
            # A machine that joined during an attack may have been in the plan and left it again.
            await cluster.controller.chat.wait_ready(PATIENCE_S)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)


async def test_a_recorded_link_cannot_be_played_again(tmp_path: Path) -> None:
    """TLS keys are new for every connection, so a recorded connection is useless."""
    authority = Authority.open(tmp_path / "authority")
    home, partner = (authority.issue_identity(tmp_path / name, "node", name) for name in ("home", "partner"))
    arrived: list[wire.Message] = []
    listener = Listener("127.0.0.1", home, lambda link: arrived.append(link.receive().message))
    recorded = bytearray()

    async def overhear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", listener.port)

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter, into: bytearray) -> None:
            while content := await source.read(65536):
                into += content
                sink.write(content)
            sink.close()

        await asyncio.gather(pass_on(reader, back, recorded), pass_on(there, writer, bytearray()))

    async with await asyncio.start_server(overhear, "127.0.0.1", 0) as tap:
        address = wire.Address(node_id(home), "127.0.0.1", tap.sockets[0].getsockname()[1])
        link = await asyncio.to_thread(dial, address, partner)
        await asyncio.to_thread(link.send, wire.PipelineHello(7))
        await until(lambda: len(arrived) == 1)
        link.close()
    with socket.create_connection(("127.0.0.1", listener.port)) as again:
        again.settimeout(PATIENCE_S)
        again.sendall(recorded)
        with contextlib.suppress(ConnectionError):
            while again.recv(65536):
                pass
    listener.close()
    assert len(recorded) > struct.calcsize("!I")
    assert arrived == [wire.PipelineHello(7)]
