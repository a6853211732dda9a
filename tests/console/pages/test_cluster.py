"""The Cluster pages: who may look, and a machine from its token to its end."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cluster import wire
from cluster.errors import LinkLost
from cluster.net.channel import dial
from cluster.nodes.probe import probe_machine
from cluster.trust.addresses import Target
from cluster.trust.handshake import PROGRAM
from cluster.trust.identity import NodeId
from cluster.trust.joining import join
from gateway.identity.audit import Filter
from tests.cluster.test_joining import node_id, until
from tests.console.browsing import Visit, visiting
from tests.gateway.api.conftest import Served

pytestmark = pytest.mark.anyio

CLUSTER = "/console/cluster"
TOKEN = re.compile(r"--token (mrj\.[0-9a-f]{32}\.[\w-]+)")


@asynccontextmanager
async def newcomer(token: str, folder: Path, port: int) -> AsyncIterator[NodeId]:
    """A machine that joins with this token, says what it has, and stays as long as it is wanted."""
    identity = await join(Target("127.0.0.1", port), token, folder, "laptop")
    controller = await dial("127.0.0.1", port, identity.client_context())
    hello = wire.Hello("laptop", probe_machine(), program=PROGRAM, protocol=wire.PROTOCOL_VERSION)
    await controller.send(hello)

    async def stay() -> None:
        with contextlib.suppress(LinkLost):
            while True:
                await controller.send(wire.Heartbeat(2**30))
                await asyncio.sleep(0.25)

    beating = asyncio.create_task(stay())
    try:
        yield node_id(identity)
    finally:
        beating.cancel()
        await controller.close()


@pytest.fixture(scope="module")
async def port(served: Served) -> int:
    """Where machines find this controller, which ends with its services."""
    served.services.directory.people.add("ann")
    return await served.services.controller.start("127.0.0.1", 0)


async def test_only_operators_see_machines_and_an_empty_cluster_says_the_next_step(
    served: Served, port: int
) -> None:
    async with visiting(served, "ann") as ann:
        for path in (
            CLUSTER,
            f"{CLUSTER}/live",
            f"{CLUSTER}/plan",
            f"{CLUSTER}/add",
            f"{CLUSTER}/machines/{'0' * 32}",
        ):
            assert (await ann.get(path)).status_code == 403
        assert (await ann.post(f"{CLUSTER}/add")).status_code == 403
        assert CLUSTER not in (await ann.get("/console")).text
    async with visiting(served) as owner:
        empty = await owner.get(CLUSTER)
        assert "No machine has joined" in empty.text
        assert f'href="{CLUSTER}/add"' in empty.text
        assert "There is no model to plan yet" in (await owner.get(f"{CLUSTER}/plan")).text
        for what in ("", "/drain", "/undrain", "/remove"):
            asked = owner.post if what else owner.get
            assert (await asked(f"{CLUSTER}/machines/{'0' * 32}{what}")).status_code == 404
        assert (await owner.get(f"{CLUSTER}/plan", without="0" * 32)).status_code == 404
        owner.csrf = "0" * 64
        assert (await owner.post(f"{CLUSTER}/add")).status_code == 403


async def test_who_signed_in_with_a_weak_key_looks_and_changes_nothing(served: Served, port: int) -> None:
    weak = served.services.keys.create("weak", ("cluster",), user_id="owner")
    async with served.client({"accept": "text/html"}) as client:
        assert (await client.post("/console/login", data={"key": weak})).status_code == 303
        owner = Visit(client, "owner")
        for path in (CLUSTER, f"{CLUSTER}/plan", "/console/models", "/console/models/fit"):
            assert (await owner.get(path)).status_code == 200
        adding = await owner.get(f"{CLUSTER}/add")
        assert "may not administer" in adding.text
        assert "Make the command" not in adding.text
        assert (await owner.post(f"{CLUSTER}/add")).status_code == 403


async def test_a_machine_from_its_token_to_its_end(served: Served, port: int, tmp_path: Path) -> None:
    """Let in without work, looked at, taken in, drained and put out; each step is written down."""
    controller = served.services.controller
    async with visiting(served) as owner:
        made = await owner.post(f"{CLUSTER}/add")
        token = TOKEN.search(made.text)
        assert token
        assert controller.fingerprint in made.text
        assert "listens for machines on this machine only" in made.text
        async with newcomer(token[1], tmp_path, port) as node:
            await until(lambda: any(state.present for state in controller.machines()))
            at = f"{CLUSTER}/machines/{node}"
            shown = await owner.get(at)
            assert "drained" in shown.text
            assert "Let it take part" in shown.text
            assert node in (await owner.get(CLUSTER)).text
            assert (await owner.post(f"{at}/undrain")).headers["location"] == at
            assert not controller.topology().draining
            assert "waiting" in (await owner.get(at)).text
            await owner.post(f"{CLUSTER}/plan", without=node)
            assert controller.topology().draining == {node}
            assert (await owner.post(f"{CLUSTER}/links")).status_code == 303
            await owner.post(f"{at}/remove")
            await until(lambda: not any(state.present for state in controller.machines()))
        removed = await owner.get(at)
        assert "removed" in removed.text
        assert f"{at}/drain" not in removed.text
        said = [event.text for event in controller.events()]
        assert said[-1] == "laptop is here"
        assert "laptop is put out for good" in said
        assert "laptop is drained" in (await owner.get(CLUSTER)).text
    entries = served.services.directory.audit.entries(Filter(target=f"machine:{node}"))
    assert [entry.action for entry in entries] == ["machine.remove", "machine.drain", "machine.undrain"]
