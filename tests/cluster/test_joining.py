"""Admission: valid tokens once, this cluster's certificates, TLS only. Other peers are refused and logged."""

import asyncio
import contextlib
import shutil
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from structlog.typing import EventDict

from cluster import wire
from cluster.controller import Controller
from cluster.errors import ClusterError, LinkError, LinkLost, PeerRejected
from cluster.generation import GenerateRequest, TextPrompt
from cluster.joining.enrolment import join
from cluster.net.channel import Channel, ChannelServer, open_channel
from cluster.net.transport import _LINKS_MAX, Link, Listener, dial
from cluster.nodes.node import Agent
from cluster.nodes.node_options import NodeOptions
from cluster.trust.addresses import Target
from cluster.trust.authority import Authority, fingerprint
from cluster.trust.identity import Identity, NodeId
from tests.clusters import PATIENCE_S, Cluster, running_cluster

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def controller(folder: Path) -> AsyncIterator[tuple[Controller, Target]]:
    running = Controller(folder)
    try:
        yield running, Target("127.0.0.1", await running.start("127.0.0.1", 0))
    finally:
        await running.stop()


@pytest.fixture
def logs() -> Iterator[list[EventDict]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


def refusals(logs: list[EventDict]) -> str:
    return " | ".join(str(line["reason"]) for line in logs if "refused" in str(line["event"]))


async def test_a_token_lets_one_machine_in_once(tmp_path: Path, logs: list[EventDict]) -> None:
    async with controller(tmp_path / "c") as (running, target):
        token = running.new_token()
        identity = await join(target, token, tmp_path / "first", "first")
        assert identity.exists
        assert (tmp_path / "first" / "key.pem").stat().st_mode & 0o077 == 0
        with pytest.raises(PeerRejected, match="already used"):
            await join(target, token, tmp_path / "second", "second")
        assert "already used" in refusals(logs)
        wrong = token[:-4] + ("aaaa" if token[-4:] != "aaaa" else "bbbb")
        with pytest.raises(PeerRejected, match="did not issue this join token"):
            await join(target, wrong, tmp_path / "third", "third")
        assert "did not issue this join token" in refusals(logs)
    assert token.split(".")[2] not in str(logs)


async def test_a_machine_admitted_drained_works_after_an_admin_enables_it(tmp_path: Path) -> None:
    async with controller(tmp_path / "c") as (running, target):
        await join(target, running.new_token(), tmp_path / "first", "first")
        await join(target, running.new_token(aside=True), tmp_path / "second", "second")
        assert {state.record.name: state.record.draining for state in running.machines()} == {
            "first": False,
            "second": True,
        }
        await running.drain_machine("second", draining=False)
        assert not any(state.record.draining for state in running.machines())
        assert [event.text for event in running.events()] == ["second is enabled again"]


async def test_a_token_names_its_cluster(tmp_path: Path) -> None:
    """A machine in the middle that shows another authority gets neither the token nor a signing request."""
    async with controller(tmp_path / "a") as (ours, _), controller(tmp_path / "b") as (_, theirs):
        with pytest.raises(PeerRejected, match="not the cluster that issued"):
            await join(theirs, ours.new_token(), tmp_path / "x", "x")


def test_tokens_expire_and_survive_restarts(tmp_path: Path) -> None:
    now = [1000.0]
    token = Authority.open(tmp_path, clock=lambda: now[0]).new_token(ttl_s=60)
    again = Authority.open(tmp_path, clock=lambda: now[0])
    now[0] += 61
    with pytest.raises(PeerRejected, match="expired"):
        again.enrol(token, "")
    assert "expired" not in token
    assert token.split(".")[1] == fingerprint(again.certificate_pem)
    assert token.split(".")[2] not in (tmp_path / "invitations.json").read_text()


async def test_foreign_certificates_are_refused(tmp_path: Path, logs: list[EventDict]) -> None:
    foreign = Authority.open(tmp_path / "foreign").issue_identity(tmp_path / "f", "node", "stranger")
    async with controller(tmp_path / "c") as (_, target):
        context = foreign.client_context()
        context.verify_mode = ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            writer.write(wire.encode(wire.AskAuthority()))
            await reader.readexactly(1)
        writer.close()
        await until(lambda: "CERTIFICATE_VERIFY_FAILED" in refusals(logs))


@pytest.mark.parametrize(
    "greeting", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 64, wire.encode(wire.AskAuthority())]
)
async def test_plain_text_is_refused(tmp_path: Path, logs: list[EventDict], greeting: bytes) -> None:
    async with controller(tmp_path / "c") as (running, target):
        reader, writer = await asyncio.open_connection(target.host, target.port)
        writer.write(greeting)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert b"certificate" not in answer.lower()
        writer.close()
        await until(lambda: bool(refusals(logs)))
        assert (await join(target, running.new_token(), tmp_path / "n", "n")).exists


async def test_data_links_demand_this_clusters_certificate(tmp_path: Path, logs: list[EventDict]) -> None:
    ours = Authority.open(tmp_path / "ours")
    home = ours.issue_identity(tmp_path / "home", "node", "home")
    partner = ours.issue_identity(tmp_path / "partner", "node", "partner")
    stranger = Authority.open(tmp_path / "theirs").issue_identity(tmp_path / "stranger", "node", "stranger")
    arrived: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def on_link(link: Link) -> None:
        # The listener may report a refused link after the test has ended.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(arrived.put_nowait, link.peer.node_id)

    listener = Listener("127.0.0.1", home, on_link)
    address = wire.Address(node_id(home), "127.0.0.1", listener.port)
    try:
        with pytest.raises(PeerRejected):
            await asyncio.to_thread(dial, address, stranger)
        with pytest.raises(PeerRejected, match="not the expected machine"):
            await asyncio.to_thread(dial, wire.Address(node_id(partner), "127.0.0.1", listener.port), partner)
        plain = socket.create_connection(("127.0.0.1", listener.port))
        plain.sendall(b"hello, is it you?\r\n\r\n")
        plain.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionError):
            assert b"hello" not in plain.recv(100)
        plain.close()
        link = await asyncio.to_thread(dial, address, partner)
        while (peer := await asyncio.wait_for(arrived.get(), PATIENCE_S)) != node_id(partner):
            pass
        link.close()
        assert peer == node_id(partner)
    finally:
        listener.close()
    assert refusals(logs)


def drip(link: Link, sent: list[int]) -> None:
    """Send half a header. Each byte arrives before a timeout that restarts with every byte would end."""
    with contextlib.suppress(OSError):
        for _ in range(wire.HEADER.size // 2):
            link._connection.sendall(b"M")
            sent.append(1)
            time.sleep(1.5)


async def test_silent_links_hold_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines of this cluster open links and send nothing. A link with a hello is still accepted."""
    monkeypatch.setattr("cluster.net.transport.HANDSHAKE_TIMEOUT_S", 3.0)
    ours = Authority.open(tmp_path / "ours")
    home, partner = (ours.issue_identity(tmp_path / name, "node", name) for name in ("home", "partner"))
    ends: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def on_link(link: Link) -> None:
        try:
            end = type(link.receive_hello()).__name__
        except LinkLost as error:
            end = str(error)
        loop.call_soon_threadsafe(ends.put_nowait, end)

    listener = Listener("127.0.0.1", home, on_link)
    address = wire.Address(node_id(home), "127.0.0.1", listener.port)
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        for _ in range(_LINKS_MAX + 1):
            link = await asyncio.to_thread(dial, address, partner)
            stack.callback(link.close)
        sent: list[int] = []
        slow = threading.Thread(target=drip, args=(link, sent))
        slow.start()
        stack.callback(slow.join)
        link = await asyncio.to_thread(dial, address, partner)
        stack.callback(link.close)
        await asyncio.to_thread(link.send, wire.PipelineHello(7))
        async with asyncio.timeout(PATIENCE_S):
            found = [await ends.get() for _ in range(_LINKS_MAX + 2)]
    assert "PipelineHello" in found
    assert len(sent) < wire.HEADER.size // 2, "a link that drips is ended by one clock for all of it"


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 2**16), ("127.0.0.1", -1), ("a\0b", 9), ("." * 99, 9)])
async def test_an_invalid_address_is_unreachable(tmp_path: Path, host: str, port: int) -> None:
    partner = Authority.open(tmp_path / "ours").issue_identity(tmp_path / "partner", "node", "partner")
    with pytest.raises(LinkLost):
        await asyncio.to_thread(dial, wire.Address(NodeId("n"), host, port), partner)
    with pytest.raises(LinkLost):
        await open_channel(wire.Address(NodeId("n"), host, port), partner)


async def test_links_are_tls_1_3_only(tmp_path: Path) -> None:
    async with controller(tmp_path / "c") as (running, target):
        identity = await join(target, running.new_token(), tmp_path / "n", "n")
        context = identity.client_context()
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(target.host, target.port, ssl=context)


async def only_gateways_may_ask_a_coordinator(cluster: Cluster, nosy: Identity) -> None:
    """A node's certificate admits it to the pipeline's links, but not to other users' prompts."""
    deployment = cluster.controller.chat.deployment
    assert deployment
    channel = await open_channel(deployment.coordinator, nosy)
    await channel.send(wire.Generate(GenerateRequest(id="nosy", prompt=TextPrompt("a river"))))
    with pytest.raises(LinkLost, match="closed"):
        while True:
            await channel.receive(PATIENCE_S)
    assert (await cluster.ask("a river", max_tokens=2)).done.completion_tokens == 2


async def test_a_node_without_the_files_fetches_its_layers_only(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=1, stages=2) as cluster:
        alone = await cluster.ask("The river", max_tokens=16)
        await only_gateways_may_ask_a_coordinator(cluster, Identity(tmp_path / "nodes" / "node-1" / "identity"))
        options = NodeOptions(
            name="far",
            folder=str(tmp_path / "far"),
            controller=Target("127.0.0.1", cluster.port),
            token=cluster.controller.new_token(),
            share=0.5,
        )
        agent = asyncio.create_task(Agent(options).run())
        try:
            await until(lambda: cluster.controller.chat.is_ready and len(stage_names(cluster)) == 2)
            assert (await cluster.ask("The river", max_tokens=16)).token_ids == alone.token_ids
            folder = next((tmp_path / "far" / "models").iterdir())
            fetched = {path.name for path in (folder / "tensors").iterdir()}
            model, plan = cluster.controller.chat.model, cluster.controller.topology().plan
            assert model
            assert plan
            for stage in plan.stages:
                layer = model.manifest.tensors[f"model.layers.{stage.spec.first_layer}.mlp.up_proj.weight"]
                assert (layer.sha256 in fetched) == (stage.member.name == "far")
        finally:
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)


@pytest.mark.slow
async def test_the_same_certificate_twice_is_refused(tmp_path: Path, logs: list[EventDict]) -> None:
    """With a copied data directory, the connected machine stays and the other one gets the reason for its refusal."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        shutil.copytree(tmp_path / "nodes" / "node-1" / "identity", tmp_path / "copy" / "identity")
        target = Target("127.0.0.1", cluster.port)
        with pytest.raises(PeerRejected, match="already in the cluster"):
            async with asyncio.timeout(PATIENCE_S):
                await Agent(NodeOptions(name="copy", folder=str(tmp_path / "copy"), controller=target)).run()
        assert (await cluster.ask("a river", max_tokens=2)).done.completion_tokens == 2
        assert cluster.controller.topology().epoch == 1


async def test_a_node_cannot_pose_as_the_controller(tmp_path: Path) -> None:
    """Its certificate comes from the same authority, but machines send it neither a token nor a hello."""
    authority = Authority.open(tmp_path / "authority")
    rogue = authority.issue_identity(tmp_path / "rogue", "node", "rogue")
    victim = authority.issue_identity(tmp_path / "victim" / "identity", "node", "victim")

    async def pose(channel: Channel) -> None:
        if channel.peer is None:
            await channel.receive(PATIENCE_S)
            await channel.send(wire.Authority(authority.certificate_pem))
        await channel.receive(PATIENCE_S)

    door = ChannelServer("rogue", rogue, pose, newcomers=True)
    target = Target("127.0.0.1", await door.open("127.0.0.1", 0))
    try:
        with pytest.raises(PeerRejected, match="not a controller"):
            await join(target, authority.new_token(), tmp_path / "new", "new")
        options = NodeOptions(name="victim", folder=str(victim.folder.parent), controller=target)
        with pytest.raises(PeerRejected, match="not a controller"):
            await Agent(options).run()
    finally:
        await door.close()


async def test_a_machine_that_never_joined_says_so(tmp_path: Path) -> None:
    async with controller(tmp_path / "c") as (_, target):
        options = NodeOptions(name="n", folder=str(tmp_path / "n"), controller=target)
        with pytest.raises(ClusterError, match="--token"):
            await Agent(options).run()
        with pytest.raises(PeerRejected, match=r"look like mrj\."):
            await join(target, "nonsense", tmp_path / "n", "n")
    with pytest.raises(LinkError, match="cannot reach"):
        await join(target, "mrj." + "0" * 32 + ".secret", tmp_path / "n", "n")


def stage_names(cluster: Cluster) -> list[str]:
    plan = cluster.controller.topology().plan
    return [stage.member.name for stage in plan.stages] if plan else []


def node_id(identity: Identity) -> NodeId:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from cluster.trust.authority import node_id_of

    key = x509.load_pem_x509_certificate((identity.folder / "certificate.pem").read_bytes()).public_key()
    assert isinstance(key, Ed25519PublicKey)
    return node_id_of(key)


async def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.05)
