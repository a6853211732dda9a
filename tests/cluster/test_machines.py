"""Admitted machines: certificates expire and are renewed, work is drained, removed machines are out at once."""

import asyncio
import contextlib
import time
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from cluster import wire
from cluster.errors import LinkError, LinkLost, MachineUnknown, NameTaken, PeerRejected
from cluster.generation import GenerateRequest, Limits, TextPrompt, TokenEvent
from cluster.joining.enrolment import join
from cluster.joining.handshake import PROGRAM, check_hello
from cluster.machine import Device, Pace, Speed
from cluster.net.channel import dial as dial_channel
from cluster.net.channel import open_channel
from cluster.net.transport import dial
from cluster.nodes.node import Agent
from cluster.nodes.node_options import NodeOptions
from cluster.nodes.probe import probe_machine
from cluster.trust import authority, renewal
from cluster.trust.addresses import Target
from cluster.trust.authority import Authority
from cluster.trust.identity import Identity, NodeId
from cluster.trust.machines import CLOCK_MARGIN_S, MachineBook
from tests.cluster.test_joining import controller, node_id, stage_names, until
from tests.clusters import DEMO_MODEL, GREEDY, PATIENCE_S, Cluster, running_cluster
from tests.templates import family_of

pytestmark = pytest.mark.anyio


def test_the_book_survives_restarts_and_forgets_expired_machines(tmp_path: Path) -> None:
    now = [1000.0]
    book = MachineBook.open(tmp_path / "machines.json", clock=lambda: now[0])
    for at, name in enumerate(("desk", "laptop", "laptop")):
        book.certified(NodeId(f"{at}" * 32), name, until_s=2000.0 + at)
    assert book.find("desk") == NodeId("0" * 32)
    assert book.find("222222") == NodeId("2" * 32)
    assert [book.find(name) for name in ("laptop", "laptop-2")] == [NodeId("1" * 32), NodeId("2" * 32)]
    with pytest.raises(MachineUnknown, match="machine toaster not found"):
        book.find("toaster")
    book.drain(NodeId("0" * 32), draining=True)
    book.remove(NodeId("1" * 32))
    again = MachineBook.open(tmp_path / "machines.json", clock=lambda: now[0])
    assert again.draining == {"0" * 32}
    assert again.removed == {"1" * 32}
    assert again.find("laptop-2") == NodeId("2" * 32)
    now[0] = 2001.5
    # For a slow clock the certificate has not expired.
    assert again.removed == {"1" * 32}
    again.note_present(NodeId("2" * 32), "tablet", 0.0)
    assert [record.name for record in again.records.values()] == ["laptop", "tablet"]
    again.rename(NodeId("2" * 32), "kitchen")
    again.note_present(NodeId("2" * 32), "laptop", 0.0)
    assert again.records[NodeId("2" * 32)].name == "kitchen", "a name from an admin stays"
    now[0] = 2001.5 + CLOCK_MARGIN_S
    assert again.removed == frozenset()


def test_a_full_book_forgets_no_removed_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.trust.machines.MACHINES_MAX", 2)
    now = [1000.0]
    book = MachineBook.open(tmp_path / "machines.json", clock=lambda: now[0])
    for at in range(5):
        now[0] += 1
        book.certified(NodeId(f"{at}" * 32), str(at), until_s=9999.0)
        if at == 0:
            book.remove(NodeId("0" * 32))
    assert book.removed == {"0" * 32}
    assert [record.name for record in book.records.values()] == ["0", "3", "4"]


def test_a_certificate_is_renewed_for_its_own_key_only(tmp_path: Path) -> None:
    ours = Authority.open(tmp_path / "authority")
    node, other = (ours.issue_identity(tmp_path / name, "node", name) for name in ("node", "other"))
    request = renewal.request_again(node, "node")
    fresh = ours.renew(node_id(node), request)
    with pytest.raises(PeerRejected, match="can only be renewed for its own key"):
        ours.renew(node_id(other), request)
    with pytest.raises(PeerRejected, match="for another key"):
        renewal.keep(other, fresh)
    stranger = Authority.open(tmp_path / "stranger")
    with pytest.raises(PeerRejected, match="cannot be used"):
        renewal.keep(node, stranger.renew(node_id(node), request))
    renewal.keep(node, fresh)
    assert 19 * 86400 < renewal.due_s(node) - time.time() <= 20 * 86400
    ours.machines.remove(node_id(node))
    with pytest.raises(PeerRejected, match="was removed"):
        ours.renew(node_id(node), request)


def shorten(
    identity: Identity, signing: Authority, role: str, life_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(authority, "CERTIFICATE_S", life_s)
        request = renewal.request_again(identity, "short")
        pem = signing.renew_own(request, "gateway" if role == "gateway" else "node")
    renewal.keep(identity, pem)


@pytest.mark.slow
async def test_certificates_are_renewed_while_links_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's and the gateway's certificates expire within seconds. The pipeline and every port still work."""
    monkeypatch.setattr(renewal, "_LOOK_EVERY_S", 0.2)
    async with controller(tmp_path / "c") as (running, target):
        signing = Authority.open(tmp_path / "c" / "authority")
        options = NodeOptions(
            name="node", folder=str(tmp_path / "node"), controller=target, token=running.new_token()
        )
        agent = asyncio.create_task(Agent(options).run())
        node, gateway = Identity(tmp_path / "node" / "identity"), Identity(tmp_path / "c" / "gateway")
        try:
            await running.chat.load_model(str(DEMO_MODEL))
            await running.chat.wait_ready(PATIENCE_S)
            epoch, before = running.topology().epoch, certificates(node, gateway)
            shorten(node, signing, "node", 3.0, monkeypatch)
            shorten(gateway, signing, "gateway", 3.0, monkeypatch)
            ended_s = time.time() + 3.0
            await until(lambda: min(renewal.due_s(node), renewal.due_s(gateway)) > ended_s + 60)
            await asyncio.sleep(max(0.0, ended_s + 1.0 - time.time()))
            assert not before & certificates(node, gateway)
            deployment = running.chat.deployment
            assert deployment
            for channel in (
                await open_channel(deployment.coordinator, gateway),
                await dial_channel(target.host, target.port, node.client_context()),
            ):
                await channel.close()
            assert [event async for event in running.chat.generate(long_request())]
            assert running.topology().epoch == epoch
        finally:
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)


def certificates(*identities: Identity) -> set[str]:
    return {(identity.folder / "certificate.pem").read_text() for identity in identities}


async def test_a_machine_with_an_expired_certificate_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controller(tmp_path / "c") as (running, target):
        identity = await join(target, running.new_token(), tmp_path / "n" / "identity", "n")
        shorten(identity, Authority.open(tmp_path / "c" / "authority"), "node", -10.0, monkeypatch)
        options = NodeOptions(name="n", folder=str(tmp_path / "n"), controller=target)
        with pytest.raises(PeerRejected, match=r"join token, because its certificate has expired"):
            await Agent(options).run()


async def test_work_is_drained_and_a_removed_machine_is_out(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        running = cluster.controller
        undisturbed = await cluster.ask("The river", max_tokens=64)
        draft = await running.draft_plan(["node-2"])
        assert draft.then
        assert [stage.member.name for stage in draft.then.stages] == ["node-1"]
        assert any(line.startswith("node-2: removed (had layers") for line in draft.change)
        assert sorted(stage_names(cluster)) == ["node-1", "node-2"], "nothing has changed yet"
        await running.drain_machine("node-2")
        await until(lambda: running.chat.is_ready and stage_names(cluster) == ["node-1"])
        assert [(s.record.name, s.record.draining) for s in running.machines()] == [
            ("node-1", False),
            ("node-2", True),
        ]
        assert (await cluster.ask("The river", max_tokens=64)).token_ids == undisturbed.token_ids
        draft = await running.draft_plan(including=["node-2"])
        assert draft.then
        assert len(draft.then.stages) == 2, "as if it were not drained"
        assert stage_names(cluster) == ["node-1"]
        await running.drain_machine("node-2", draining=False)
        await until(lambda: running.chat.is_ready and sorted(stage_names(cluster)) == ["node-1", "node-2"])
        kinds = [event.kind for event in reversed(running.events())]
        assert kinds[:4] == ["joined", "joined", "plan", "ready"]
        assert [kind for kind in kinds[4:] if kind in ("drained", "undrained", "ready")] == [
            "drained",
            "ready",
            "undrained",
            "ready",
        ]

        outcast = Identity(tmp_path / "nodes" / "node-2" / "identity")
        ports = listening_ports(cluster, 1)
        removing: asyncio.Task[NodeId] | None = None
        text = ""
        async for event in running.chat.generate(long_request()):
            if isinstance(event, TokenEvent):
                text += event.text
                removing = removing or asyncio.create_task(running.remove_machine("node-2"))
        assert text == undisturbed.texts[0]
        assert removing
        assert await removing == node_id(outcast)
        await until(lambda: has_ended(cluster, 2))
        await until(lambda: running.chat.is_ready and stage_names(cluster) == ["node-1"])
        await refused_everywhere(cluster, outcast, ports)
        with pytest.raises(MachineUnknown):
            await running.remove_machine("node-2")
        await comes_back_with_a_token(cluster, outcast)


def has_ended(cluster: Cluster, number: int) -> bool:
    try:
        return cluster.node_process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def long_request() -> GenerateRequest:
    limits = Limits(max_tokens=64, ignore_eos=True)
    return GenerateRequest(id="long", prompt=TextPrompt("The river"), sampling=GREEDY, limits=limits)


def listening_ports(cluster: Cluster, number: int) -> list[int]:
    """Return the ports where the processes of a node listen."""
    processes = family_of(cluster.node_process(number))[1:]
    return [
        connection.laddr.port
        for process in processes
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


async def refused_everywhere(cluster: Cluster, outcast: Identity, ports: list[int]) -> None:
    """Its certificate is still valid, but no port and no link of the cluster accepts it."""
    partner = node_id(Identity(cluster_node(cluster, 1)))
    channel = await dial_channel("127.0.0.1", cluster.port, outcast.client_context())
    answer, _ = await channel.receive(PATIENCE_S)
    assert isinstance(answer, wire.Refused)
    assert "was removed" in answer.reason
    await channel.close()
    assert ports
    for port in ports:
        with (
            pytest.raises(LinkError),
            contextlib.closing(
                await asyncio.to_thread(dial, wire.Address(partner, "127.0.0.1", port), outcast)
            ) as link,
        ):
            link.send(wire.PipelineHello(1))
            while not isinstance((await asyncio.to_thread(link.receive)).message, wire.Refused):
                pass
            raise LinkLost("refused by name")


async def comes_back_with_a_token(cluster: Cluster, outcast: Identity) -> None:
    """It comes back as a new machine. Its old certificate stays refused."""
    before = node_id(outcast)
    options = NodeOptions(
        name="returned",
        folder=str(outcast.folder.parent),
        controller=Target("127.0.0.1", cluster.port),
        token=cluster.controller.new_token(),
        shares_files=True,
    )
    agent = asyncio.create_task(Agent(options).run())
    try:
        await until(lambda: any(m.record.name == "returned" and m.present for m in cluster.controller.machines()))
        assert node_id(outcast) != before
    finally:
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)


def cluster_node(cluster: Cluster, number: int) -> Path:
    return cluster.nodes._folder / f"node-{number}" / "identity"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"program": "0.0.9"}, f"runs Millrace 0.0.9, this cluster runs Millrace {PROGRAM}"),
        ({"program": ""}, "runs an older Millrace"),
        ({"protocol": 99}, f"speaks protocol 99, this cluster {wire.PROTOCOL_VERSION}"),
        ({"name": "x" * 201}, "1 to 200 characters"),
        ({"memory_total_bytes": 2**63}, f"a memory of {2**63} bytes"),
        ({"memory_usable_bytes": -1}, "claims -1 usable bytes"),
        ({"memory_usable_bytes": 2**62}, f"claims {2**62} usable bytes"),
        ({"cores": 0}, "claims 0 cores"),
        ({"torch": "x" * 201}, "a torch of 201 characters"),
        ({"architecture": "x" * 201}, "an? architecture of 201 characters"),
        ({"device": Device("cpu", "x" * 201, 0)}, "a device name of 201 characters"),
        ({"pace": Pace(speeds={str(at): Speed() for at in range(17)})}, "more than 16 speeds"),
        ({"pace": Pace(speeds={"fp32": Speed((1,) * 17, (1.0,) * 17)})}, "16 points of one"),
        ({"pace": Pace(speeds={"fp32": Speed(reason="x" * 201)})}, "a reason of 201 characters"),
    ],
)
def test_other_programs_and_forged_facts_are_refused_with_both_values(
    changes: dict[str, object], reason: str
) -> None:
    machine = probe_machine()
    ours = {name: value for name, value in changes.items() if hasattr(machine, name)}
    hello = wire.Hello("n", replace(machine, **ours), program=PROGRAM, protocol=wire.PROTOCOL_VERSION)
    others = {name: value for name, value in changes.items() if name not in ours}
    with pytest.raises(PeerRejected, match=reason):
        check_hello(replace(hello, **others))


def test_a_removed_machine_stays_out_even_if_the_disk_is_full(tmp_path: Path) -> None:
    identity = Identity(tmp_path / "full")
    with pytest.raises(FileNotFoundError):
        identity.keep_removed([NodeId("a")])
    assert identity.removed() == {"a"}
    identity.folder.mkdir()
    identity.keep_removed([NodeId("b")])
    assert identity.removed() == {"b"}


def test_an_admins_name_stays_and_names_one_machine(tmp_path: Path) -> None:
    now = [1000.0]
    book = MachineBook.open(tmp_path / "machines.json", clock=lambda: now[0])
    desk, laptop, gone = (NodeId(f"{mark}" * 32) for mark in ("ab", "cd", "ef"))
    for each, name in ((desk, "desk"), (laptop, "laptop"), (gone, "tower")):
        book.certified(each, name, until_s=2000.0)
    book.remove(gone)
    for taken in ("laptop", "LapTop", "cdcdcd"):
        with pytest.raises(NameTaken, match="laptop"):
            book.rename(desk, taken)
    assert book.find("desk") == desk
    book.rename(desk, "tower")  # A removed machine keeps no claim to its name.
    again = MachineBook.open(tmp_path / "machines.json", clock=lambda: now[0])
    for said in ("desk", "workstation"):
        # The machine still reports its own name whenever it connects.
        again.note_present(desk, said, 0.0)
        assert (again.find("tower"), again.called(desk, said)) == (desk, "tower")
        assert again.records[desk].own_name == said
    again.rename(desk, "workstation")
    assert again.records[desk].own_name == ""
    again.note_present(desk, "bench", 0.0)
    assert (again.records[desk].name, again.called(desk, "bench")) == ("bench", "bench")
