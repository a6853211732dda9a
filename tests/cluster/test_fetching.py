"""Model files come from the nearest node that has them; a lost or faulty node costs no correct byte."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from cluster import wire
from cluster.controller import Controller as ClusterController
from cluster.errors import LinkLost, ModelNotFound, PeerRejected, WeightsMismatch
from cluster.models.manifest import Manifest, read_manifest
from cluster.models.store import PART_BYTES, ModelCopy, read_part
from cluster.net.channel import Channel, open_channel
from cluster.nodes import file_fetcher, file_server
from cluster.nodes.file_fetcher import ControllerSource, Fetcher
from cluster.nodes.file_server import FileServer
from cluster.nodes.node import Agent
from cluster.nodes.node_options import NodeOptions
from cluster.nodes.sources import nearest
from cluster.trust.addresses import Target
from cluster.trust.authority import Authority
from cluster.trust.identity import Identity, NodeId
from tests.cluster.test_joining import node_id, until
from tests.clusters import DEMO_MODEL, PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(DEMO_MODEL, "m")


@dataclass(eq=False)
class Controller(ControllerSource):
    """The controller's end of the agent's connection, which sends the demo model's folder."""

    manifest: Manifest
    sent_bytes: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self._answer)

    async def _answer(self, message: wire.Message) -> None:
        assert isinstance(message, wire.Fetch)
        self.asked.append((message.sha256, message.offset))
        content, total_bytes = read_part(DEMO_MODEL, self.manifest, message.sha256, message.offset)
        self.sent_bytes += len(content)
        self.deliver(wire.Part(message.sha256, message.offset, total_bytes), content)


@dataclass(frozen=True)
class Neighbour:
    identity: Identity
    models: Path
    door: FileServer
    address: wire.Address


@asynccontextmanager
async def neighbour(
    authority: Authority, folder: Path, manifest: Manifest, damage: Callable[[Path], object] | None = None
) -> AsyncIterator[Neighbour]:
    """Run a node that holds the whole model, possibly with damaged bytes on its disk."""
    identity = authority.issue_identity(folder / "identity", "node", folder.name)
    copy = ModelCopy(folder / "models", manifest)
    for sha256 in copy.missing(list(manifest.tensors)):
        while True:
            content, total_bytes = read_part(DEMO_MODEL, manifest, sha256, copy.offset(sha256))
            if copy.append(sha256, content, total_bytes):
                break
        if damage:
            damage(copy.folder / "tensors" / sha256)
    door = FileServer(folder / "models", identity)
    port = await door.open("127.0.0.1")
    try:
        yield Neighbour(identity, folder / "models", door, wire.Address(node_id(identity), "127.0.0.1", port))
    finally:
        await door.close()


def fetcher(authority: Authority, folder: Path, manifest: Manifest) -> tuple[Fetcher, Controller]:
    controller = Controller(manifest)
    identity = authority.issue_identity(folder / "identity", "node", folder.name)
    return Fetcher(folder / "models", identity, controller), controller


def is_complete(fetcher: Fetcher, manifest: Manifest) -> bool:
    copy = ModelCopy(fetcher.models, manifest)
    names = list(manifest.tensors)
    return not copy.missing(names) and not copy.drop_damaged(names)


def largest(manifest: Manifest) -> str:
    return max(manifest.tensors, key=lambda name: manifest.tensors[name].size_bytes)


async def test_a_neighbour_sends_all_parts_instead_of_the_controller(tmp_path: Path, manifest: Manifest) -> None:
    authority = Authority.open(tmp_path / "authority")
    async with neighbour(authority, tmp_path / "near", manifest) as near:
        ours, controller = fetcher(authority, tmp_path / "new", manifest)
        await ours.fetch(manifest, list(manifest.tensors), [near.address])
    assert controller.sent_bytes == 0
    assert is_complete(ours, manifest)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


async def test_a_node_with_wrong_bytes_is_detected_and_gets_no_more_requests(
    tmp_path: Path, manifest: Manifest
) -> None:
    """Bytes of the right length are detected by their hash. A file that is too long or too short needs no hash."""
    authority = Authority.open(tmp_path / "authority")
    name = largest(manifest)
    async with neighbour(authority, tmp_path / "liar", manifest, flip) as liar:
        ours, controller = fetcher(authority, tmp_path / "new", manifest)
        await ours.fetch(manifest, [name], [liar.address])
        assert ours.liars == {liar.address.node_id}
        begun = len(controller.asked)
        assert begun > 1
        await ours.fetch(manifest, list(manifest.tensors), [liar.address])
    assert is_complete(ours, manifest)
    for damage in (lambda path: path.write_bytes(b""), lambda path: path.write_bytes(path.read_bytes() + b"x")):
        async with neighbour(authority, tmp_path / f"odd{id(damage)}", manifest, damage) as odd:
            ours, controller = fetcher(authority, tmp_path / f"new{id(damage)}", manifest)
            await ours.fetch(manifest, [name], [odd.address])
            assert controller.sent_bytes >= manifest.tensors[name].size_bytes


async def test_a_file_begun_by_one_is_finished_by_another(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two neighbours stop sending in the middle of a file, one after the other. The controller sends the rest."""
    authority = Authority.open(tmp_path / "authority")
    name = largest(manifest)
    sha256, size_bytes = manifest.tensors[name].sha256, manifest.tensors[name].size_bytes
    assert size_bytes > 3 * PART_BYTES
    parts = 0

    def read_held(models: Path, digest: str, wanted: str, offset: int) -> tuple[bytes, int]:
        nonlocal parts
        parts += wanted == sha256
        if parts > 1 and wanted == sha256:
            parts = 0
            raise OSError("the disk is gone")
        return read_part(DEMO_MODEL, manifest, wanted, offset)

    monkeypatch.setattr(file_server, "read_held", read_held)
    async with (
        neighbour(authority, tmp_path / "a", manifest) as first,
        neighbour(authority, tmp_path / "b", manifest) as second,
    ):
        ours, controller = fetcher(authority, tmp_path / "new", manifest)
        await ours.fetch(manifest, [name], [first.address, second.address])
    assert next(offset for asked, offset in controller.asked if asked == sha256) == 2 * PART_BYTES
    assert is_complete(ours, manifest) is False
    assert not ModelCopy(ours.models, manifest).missing([name])


async def test_the_controllers_own_wrong_bytes_end_the_order(tmp_path: Path, manifest: Manifest) -> None:
    ours, controller = fetcher(Authority.open(tmp_path / "authority"), tmp_path / "new", manifest)

    async def lie(message: wire.Message) -> None:
        assert isinstance(message, wire.Fetch)
        content, total_bytes = read_part(DEMO_MODEL, manifest, message.sha256, message.offset)
        controller.deliver(wire.Part(message.sha256, message.offset, total_bytes), bytes(len(content)))

    controller._report = lie
    with pytest.raises(WeightsMismatch):
        await ours.fetch(manifest, [largest(manifest)], [])


async def test_a_refused_part_ends_the_order_at_once(tmp_path: Path, manifest: Manifest) -> None:
    ours, controller = fetcher(Authority.open(tmp_path / "authority"), tmp_path / "new", manifest)

    async def refuse(message: wire.Message) -> None:
        assert isinstance(message, wire.Fetch)
        controller.deliver(wire.NoPart(message.sha256, message.offset, "the model has been changed"), b"")

    controller._report = refuse
    with pytest.raises(ModelNotFound, match="the model has been changed"):
        async with asyncio.timeout(PATIENCE_S / 2):
            await ours.fetch(manifest, [largest(manifest)], [])


async def test_parts_from_an_earlier_run_blame_no_node(tmp_path: Path, manifest: Manifest) -> None:
    authority = Authority.open(tmp_path / "authority")
    name = largest(manifest)
    entry = manifest.tensors[name]
    async with neighbour(authority, tmp_path / "near", manifest) as near:
        ours, controller = fetcher(authority, tmp_path / "new", manifest)
        ModelCopy(ours.models, manifest).append(entry.sha256, b"rubbish", entry.size_bytes)
        await ours.fetch(manifest, [name], [near.address])
        assert not ours.liars
        assert controller.sent_bytes == 0


async def test_a_doubted_copy_is_hashed_and_repaired(tmp_path: Path, manifest: Manifest) -> None:
    ours, controller = fetcher(Authority.open(tmp_path / "authority"), tmp_path / "new", manifest)
    name = largest(manifest)
    await ours.fetch(manifest, [name], [])
    flip(ModelCopy(ours.models, manifest).folder / "tensors" / manifest.tensors[name].sha256)
    controller.asked.clear()
    await ours.fetch(manifest, [name], [])
    assert not controller.asked
    ours.doubt()
    await ours.fetch(manifest, [name], [])
    assert {asked for asked, _ in controller.asked} == {manifest.tensors[name].sha256}


async def test_the_file_server_serves_nodes_and_files_only(tmp_path: Path, manifest: Manifest) -> None:
    authority = Authority.open(tmp_path / "authority")
    gateway = authority.issue_identity(tmp_path / "gateway", "gateway", "gateway")
    node = authority.issue_identity(tmp_path / "node", "node", "node")
    async with neighbour(authority, tmp_path / "near", manifest) as near:

        async def ask(identity: Identity, *questions: wire.Message) -> wire.Message:
            channel: Channel = await open_channel(near.address, identity)
            try:
                for question in questions:
                    await channel.send(question)
                return (await channel.receive(PATIENCE_S))[0]
            finally:
                await channel.close()
                await asyncio.sleep(0.05)

        refused = [
            await ask(gateway, wire.AskHeld(manifest.digest)),
            await ask(node, wire.Fetch("0" * 64, 0)),
            await ask(node, wire.AskHeld("../../identity")),
            await ask(node, wire.Heartbeat(1)),
        ]
        assert [type(answer) for answer in refused] == [wire.Refused] * 4
        held = await ask(node, wire.AskHeld(manifest.digest))
        assert isinstance(held, wire.Held)
        assert len(held.sha256s) == len(
            {entry.sha256 for entry in (*manifest.tensors.values(),)} | {e.sha256 for e in manifest.files.values()}
        )
        assert await ask(node, wire.AskHeld("0" * 64)) == wire.Held([])
        near.identity.keep_removed([node_id(node)])
        with pytest.raises((PeerRejected, LinkLost)):
            answer = await ask(node, wire.AskHeld(manifest.digest))
            raise PeerRejected(str(answer))


def test_the_nearest_come_first_and_no_node_beyond_the_controller() -> None:
    def at(name: str, host: str) -> wire.Address:
        return wire.Address(NodeId(name), host, 1)

    asker = at("me", "192.168.1.5")
    here, near, next_door, far = (
        at("here", "192.168.1.5"),
        at("near", "192.168.1.9"),
        at("next", "192.168.1.7"),
        at("far", "10.9.9.9"),
    )
    measured = {("next", "me"): 0.0001, ("far", "me"): 0.08}
    delays = lambda one, other: measured.get((one, other))  # noqa: E731

    def order(controller: str) -> list[str]:
        return [peer.node_id for peer in nearest(asker, [far, near, asker, here, next_door], controller, delays)]

    assert order("192.168.1.1") == ["here", "next", "near"]
    assert order("203.0.113.1") == ["here", "next", "near"]
    measured["far", "me"] = 0.015
    assert order("203.0.113.1") == ["here", "next", "near", "far"]


@pytest.mark.slow
async def test_a_killed_nodes_parts_come_from_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real agents, the second one gets its parts from the first, which is killed in the middle."""
    running = ClusterController(tmp_path / "cluster")
    port = await running.start("127.0.0.1", 0)
    second = tmp_path / "second" / "models"
    agent: asyncio.Task[None] | None = None

    def options(name: str) -> NodeOptions:
        target, folder = Target("127.0.0.1", port), str(tmp_path / name)
        return NodeOptions(name=name, folder=folder, controller=target, token=running.new_token(), share=0.3)

    first = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cluster.nodes.node_process", stdin=asyncio.subprocess.PIPE
    )
    try:
        assert first.stdin
        first.stdin.write(msgspec.json.encode(options("first")) + b"\n")
        model = await running.chat.load_model(str(DEMO_MODEL))
        givers: list[tuple[str, int]] = []
        next_content = file_fetcher._next_content

        async def counting(copy: ModelCopy, source: file_fetcher.Source, sha256: str) -> tuple[bytes, int]:
            if len(givers) >= 10 and copy.offset(sha256) and first.returncode is None:
                os.kill(first.pid, signal.SIGKILL)
                await first.wait()
            offset = copy.offset(sha256)
            found = await next_content(copy, source, sha256)
            givers.append((source.name, offset))
            return found

        monkeypatch.setattr(file_fetcher, "_next_content", counting)
        await running.chat.wait_ready(60)
        agent = asyncio.create_task(Agent(options("second")).run())
        await until(lambda: first.returncode is not None)
        await until(lambda: not ModelCopy(second, model.manifest).missing(list(model.manifest.tensors)))
        begun = [giver for giver, _ in givers].index("the controller")
        assert begun >= 10
        assert all(giver.startswith("node ") for giver, _ in givers[:begun])
        assert givers[begun][1] > 0
        assert {giver for giver, _ in givers[begun:]} == {"the controller"}
        await until(
            lambda: (plan := running.topology().plan) is not None and plan.stages[0].member.name == "second"
        )
    finally:
        await running.stop()
        if first.returncode is None:
            first.kill()
        await first.wait()
        if agent is not None:
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)
