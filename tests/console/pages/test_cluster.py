"""The Cluster pages: who may look, and a machine from its token to its end."""

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster import wire
from cluster.control.topology import DeploymentState
from cluster.errors import LinkLost
from cluster.joining.enrolment import join
from cluster.joining.handshake import PROGRAM
from cluster.net.channel import dial
from cluster.nodes.probe import probe_machine
from cluster.trust.addresses import Target
from cluster.trust.identity import Identity, NodeId
from gateway.admin.authority import Authority
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
    served.services.directory.users.add("ann")
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
        assert "No machines yet" in empty.text
        assert f'href="{CLUSTER}/add"' in empty.text
        assert "No model is loaded yet" in (await owner.get(f"{CLUSTER}/plan")).text
        for what in ("", "/drain", "/undrain", "/remove"):
            asked = owner.post if what else owner.get
            assert (await asked(f"{CLUSTER}/machines/{'0' * 32}{what}")).status_code == 404
        assert (await owner.get(f"{CLUSTER}/plan", without="0" * 32)).status_code == 404
        owner.csrf = "0" * 64
        assert (await owner.post(f"{CLUSTER}/add")).status_code == 403


async def test_all_models_of_the_cluster_are_listed(
    served: Served, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = served.services.controller
    models = (
        DeploymentState("big", "b", "chat", "ready", "big over 2 node(s)", 3, "int8", 4096, (NodeId("a" * 32),)),
        DeploymentState("vectors", "v", "embedding", "failed", "1024 MiB short", 1),
    )
    told = dataclasses.replace(controller.topology(), deployments=models)
    monkeypatch.setattr(controller, "topology", lambda: told)
    async with visiting(served) as owner:
        page = (await owner.get(CLUSTER)).text
        for shown in (
            "Models of the cluster",
            "big over 2 node(s)",
            "int8",
            "aaaaaa",
            "vectors",
            "1024 MiB short",
        ):
            assert shown in page
        assert "1024 MiB short" in (await owner.get("/console/models")).text


async def test_who_signed_in_with_a_weak_key_looks_and_changes_nothing(served: Served, port: int) -> None:
    weak = served.services.keys.create("weak", ("cluster",), user_id="owner")
    async with served.client({"accept": "text/html"}) as client:
        assert (await client.post("/console/login", data={"key": weak})).status_code == 303
        owner = Visit(client, "owner")
        for path in (CLUSTER, f"{CLUSTER}/plan", "/console/models", "/console/models/fit"):
            assert (await owner.get(path)).status_code == 200
        adding = await owner.get(f"{CLUSTER}/add")
        assert "no admin access" in adding.text
        assert "Generate command" not in adding.text
        assert (await owner.post(f"{CLUSTER}/add")).status_code == 403


async def test_a_machine_from_its_token_to_its_end(served: Served, port: int, tmp_path: Path) -> None:
    """Let in without work, looked at, taken in, drained and put out; each step is written down."""
    controller = served.services.controller
    async with visiting(served) as owner:
        made = await owner.post(f"{CLUSTER}/add")
        token = TOKEN.search(made.text)
        assert token
        assert controller.fingerprint in made.text
        assert "No other machine can join yet" in made.text
        assert "Until then this command works only on this machine" in made.text
        async with newcomer(token[1], tmp_path, port) as node:
            await until(lambda: any(state.present for state in controller.machines()))
            at = f"{CLUSTER}/machines/{node}"
            shown = await owner.get(at)
            assert "drained" in shown.text
            assert " Enable machine</button>" in shown.text
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
        assert said[-1] == "laptop joined"
        assert "laptop was removed permanently" in said
        assert "laptop is drained" in (await owner.get(CLUSTER)).text
    entries = served.services.directory.audit.entries(Filter(target=f"machine:{node}"))
    assert [entry.action for entry in entries] == ["machine.remove", "machine.drain", "machine.undrain"]


async def test_a_machine_is_called_what_users_call_it(served: Served, port: int, tmp_path: Path) -> None:
    """At once, on every page, and when it comes again; written down; no name that means another one."""
    controller = served.services.controller
    tokens = [controller.new_token() for _ in range(2)]

    def here() -> set[str]:
        return {member.name for member in controller.topology().members}

    async with visiting(served) as owner, served.machine as machine:
        async with (
            newcomer(tokens[0], tmp_path / "a", port) as node,
            newcomer(tokens[1], tmp_path / "b", port) as other,
        ):
            await until(lambda: len(controller.topology().members) == 2)
            at = f"{CLUSTER}/machines/{node}"
            done = await owner.post(f"{at}/rename", name="Ann's <desk>")
            assert (done.status_code, done.headers["location"]) == (303, at)
            assert here() == {"Ann's <desk>", "laptop-2"}
            for path in (CLUSTER, at):
                assert "Ann&#39;s &lt;desk&gt;" in (await owner.get(path)).text
            assert "<dt>Reported name</dt><dd>laptop</dd>" in (await owner.get(at)).text
            for name, says in (
                ("LAPTOP-2", "already has this name"),
                (other[:8], "already has this name"),
                ("", "Enter a value"),
                *((x, "unsupported characters") for x in ("a/b", "..", "-x", "lap\u200btop", "\u202epotpal")),
                ("x" * 65, "64"),
            ):
                refused = await owner.post(f"{at}/rename", name=name)
                assert refused.status_code == 400, name
                assert re.search('id="f-name"[^>]*aria-invalid="true"', refused.text), name
                assert says in refused.text, name
            taken = await machine.post(f"/admin/machines/{node}/rename", json={"name": "laptop-2"})
            assert (taken.status_code, taken.json()["error"]["param"]) == (409, "name")
            unknown = await machine.post("/admin/machines/toaster/rename", json={"name": "t"})
            assert unknown.status_code == 404
        await until(lambda: not controller.topology().members)
        # It comes again, and still calls itself a laptop.
        identity = Identity(tmp_path / "a")
        channel = await dial("127.0.0.1", port, identity.client_context())
        await channel.send(wire.Hello("laptop", probe_machine(), program=PROGRAM, protocol=wire.PROTOCOL_VERSION))
        await until(lambda: here() == {"Ann's <desk>"})
        by_name = await machine.post("/admin/machines/Ann's <desk>/rename", json={"name": "laptop2"})
        assert by_name.json() == {"renamed": node, "from": "Ann's <desk>", "to": "laptop2"}
        await channel.close()
        await until(lambda: not controller.topology().members)
        said = [event.text for event in controller.events()]
        assert "laptop2 was lost" in said[0], "it went by its newest name"
        assert "laptop was renamed to Ann's <desk>" in said
        assert "renamed" in (await owner.get(CLUSTER)).text
        for each in (node, other):
            await owner.post(f"{CLUSTER}/machines/{each}/remove")
    entries = served.services.directory.audit.entries(Filter(target=f"machine:{node}", action="machine.rename"))
    assert [entry.after for entry in entries] == [
        {"from": "Ann's <desk>", "to": "laptop2"},
        {"from": "laptop", "to": "Ann's <desk>"},
    ]


async def test_of_two_who_want_a_name_at_once_one_has_it(
    served: Served, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, record = served.services.controller, Authority.record
    tokens = [controller.new_token() for _ in range(2)]
    async with (
        newcomer(tokens[0], tmp_path / "a", port) as node,
        newcomer(tokens[1], tmp_path / "b", port) as other,
    ):
        await until(lambda: len(controller.topology().members) == 2)

        async def faster(*given: Any) -> None:
            await record(*given)
            controller.rename_machine(other, "mill")

        monkeypatch.setattr(Authority, "record", faster)
        async with served.machine as machine:
            refused = await machine.post(f"/admin/machines/{node}/rename", json={"name": "mill"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (409, "name")
        assert {member.name for member in controller.topology().members} == {"laptop", "mill"}


async def test_a_name_that_owners_have_in_the_settings_is_left_alone(
    served: Served, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, settings = served.services.controller, served.services.settings
    async with visiting(served) as owner, newcomer(controller.new_token(), tmp_path, port) as node:
        await until(lambda: any(state.present for state in controller.machines()))
        [called] = [state.record.name for state in controller.machines() if state.present]
        with_owners = settings.cluster.model_copy(update={"owners": ("safe", called)})
        monkeypatch.setitem(settings.__dict__, "cluster", with_owners)
        for name in ("safe", "anything"):
            refused = await owner.post(f"{CLUSTER}/machines/{node}/rename", name=name)
            assert (refused.status_code, "cluster.owners" in refused.text) == (400, True)
        assert [state.record.name for state in controller.machines() if state.present] == [called]
