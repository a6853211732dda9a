"""Overview: the instance for operators, what is their own for others, and the switch that stops buying."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from accounting.ledger.postings import Posting
from cluster.trust.addresses import Target
from gateway.app import create_app, open_services
from gateway.console.pages.overview.values import Load, charts
from gateway.identity.audit import Filter
from gateway.identity.key_rows import KeyTerms
from gateway.settings import CloudModel, CloudSettings, CostsSettings, Settings
from gateway.settings.pool import PoolBackend, PoolSettings
from market.seller.states import UNREACHED
from tests.accounting.ledgers import usage
from tests.console.browsing import visiting
from tests.console.test_live import watching
from tests.databases import prepared
from tests.gateway.api.conftest import Served
from tests.gateway.test_request_log import entry
from tests.gateways import until

pytestmark = pytest.mark.anyio

MODEL = CloudModel(model="openai/m", prompt_usd_per_mtok="1.00", completion_usd_per_mtok="2.00")


@dataclass
class Marketplace(Served):
    """`tokens` are the keys that ann and the owner have asked with."""

    tokens: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
async def instance(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Marketplace]:
    """A gateway with a cloud model and no machine, where ann and the owner have each asked once."""
    folder = prepared(tmp_path_factory.mktemp("overview"))
    settings = Settings(
        data_dir=folder.path,
        cloud=CloudSettings(models={"big": MODEL}),
        costs=CostsSettings(compared_with={"theirs": "big"}),
    )
    async with open_services(settings, folder) as services:
        served = Marketplace(services, create_app(services, Target("127.0.0.1", 1)))
        services.directory.users.add("ann")
        for who, model in (("ann", "hers"), ("owner", "theirs")):
            made = services.keys.issue(f"{who}'s key", ("pool",), user_id=who, terms=KeyTerms(may_administer=True))
            served.tokens[who], key = made.token, made.row.key_id
            services.request_log.add_all([entry(f"req_{who}", key_id=key, model=model, lane="pool")])
            row: dict[str, Any] = {"user_id": who, "key_id": key, "model": model, "lane": "pool"}
            used = usage(
                f"req_{who}", started_ns=time.time_ns(), prompt_tokens=10**6, completion_tokens=10**6, **row
            )
            await services.ledger.book(Posting(f"use:{who}", "use", who, usages=(used,)))
            until(partial(services.request_log.find, f"req_{who}"))
        yield served


async def shown(instance: Marketplace, who: str, path: str = "/console") -> str:
    async with visiting(instance, who, token=instance.tokens[who]) as visit:
        answer = await visit.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_operators_see_the_instance_and_others_what_is_their_own(instance: Marketplace) -> None:
    everything, own = await shown(instance, "owner"), await shown(instance, "ann")
    for text, others in ((everything, True), (own, False)):
        assert "req_ann" in text
        assert ("req_owner" in text) is others
        assert ("Throughput" in text) is others
        assert ("No machines yet" in text) is others
        assert ("Pause cloud" in text) is others
        assert ("owner&#39;s key" in text) is others
    # Another key of hers is another application's.
    async with visiting(instance, "ann") as other:
        text = (await other.get("/console")).text
        assert "req_ann" not in text
        assert ">hers<" not in text
    # Two million tokens that the owner's settings compare with a model of $1 and $2; ann's with none.
    assert "$3.00" in everything
    assert "No cloud price is known for hers" in everything
    assert "$3.00" not in own


async def test_a_backend_that_never_answered_is_told(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    attic = PoolBackend(name="attic", base_url="http://127.0.0.1:9/v1")
    settings = Settings(data_dir=folder.path, pool=PoolSettings(backends=[attic]))
    async with open_services(settings, folder) as services:
        instance = Marketplace(services, create_app(services, Target("127.0.0.1", 1)))
        made = services.keys.issue("owner's key", ("pool",), terms=KeyTerms(may_administer=True))
        instance.tokens["owner"] = made.token
        assert "pool:attic has not answered since the gateway started" in await shown(instance, "owner")


async def test_buying_is_stopped_and_begun_again_by_an_operator_alone(instance: Marketplace) -> None:
    services = instance.services
    async with visiting(instance, "ann") as ann:
        assert (await ann.post("/console/overview/pause", name="cloud")).status_code == 403
    async with visiting(instance, "owner") as owner:
        for name in ("", "nowhere", "pool"):
            refused = await owner.post("/console/overview/pause", name=name)
            assert refused.status_code == 400
            assert "name:" in refused.text
        assert not services.pauses.now
        done = await owner.post("/console/overview/pause", name="cloud")
        assert (done.status_code, done.headers["location"]) == (303, "/console")
        page = (await owner.get("/console")).text
        assert "Resume cloud" in page
        assert "The cloud lane is paused, by owner" in page
        assert [pause.name for pause in services.pauses.now] == ["cloud"]
        await owner.post("/console/overview/resume", name="cloud")
        page = (await owner.get("/console")).text
        assert "Pause cloud" in page
        assert "Pause selling" not in page
        async with instance.machine as agent:
            assert (await agent.get("/admin/idle", params={"state": UNREACHED})).status_code == 200
        page = (await owner.get("/console")).text
        assert "Pause selling" in page
        assert "The tunnel is down" in page
    written = services.directory.audit.entries(Filter(target="pause:cloud"))
    assert [(each.action, each.actor) for each in written] == [
        ("pause.end", "user:owner"),
        ("pause.begin", "user:owner"),
    ]


async def test_thirty_days_are_anybodys_whom_one_may_see(instance: Marketplace) -> None:
    def models(text: str) -> str:
        return text.partition('id="overview-models"')[2].partition("</table>")[0]

    of_ann = models(await shown(instance, "owner", "/console?whose=user:ann"))
    assert "hers" in of_ann
    assert "theirs" not in of_ann
    for who, whose in (("ann", "user:owner"), ("ann", "organization:home"), ("owner", "user:nobody")):
        async with visiting(instance, who) as visit:
            assert (await visit.get(f"/console?whose={whose}")).status_code in (403, 404)


async def test_a_key_that_may_not_administer_opens_no_view_of_others(instance: Marketplace) -> None:
    """Neither the page nor its stream; the machines are on their own pages for everybody who administers them."""
    users, keys = instance.services.directory.users, instance.services.keys
    users.add_organization("lab")
    users.add("eve", organization="lab", role="admin")
    for who, has_machines in (("owner", True), ("eve", False)):
        weak = keys.issue("weak", ("pool",), user_id=who)
        entries = [entry(f"req_weak_{who}", key_id=weak.row.key_id, model="seldom", lane="pool")]
        instance.services.request_log.add_all(entries)
        async with visiting(instance, who, token=weak.token) as visit:
            page = (await visit.get("/console")).text
            async with watching(instance, visit, path="/console/overview/live") as live:
                await live.until("overview-stats")
            assert (await visit.get("/console?whose=user:ann")).status_code in (403, 404)
            assert (await visit.get("/console?whose=organization:home")).status_code in (403, 404)
        for text in (page, live.text):
            for others in ("req_ann", "req_owner", "ann&#39;s key", "owner&#39;s key", "$3.00", ">hers<"):
                assert others not in text, others
            assert "Savings vs. cloud" not in text
            assert f"req_weak_{who}" in text
            assert ("No machines yet" in text) is has_machines
        assert "this key has no admin access" in page
        assert ("Throughput" in page) is has_machines
        assert "Pause cloud" not in page
    for who in ("owner", "eve"):
        async with visiting(instance, who) as visit:
            page = (await visit.get("/console")).text
        assert "this key has no admin access" not in page
        assert (f"req_weak_{who}" in page) is True


async def test_charts_go_back_as_far_as_is_asked_and_not_beyond_the_start(instance: Marketplace) -> None:
    services, history = instance.services, instance.services.history
    history.since_s = time.time() - 100
    load = Load(services.lanes, history, services.metrics, services.admission, services.turns)
    drawn = charts(load, "quarter")
    assert 19 <= len(drawn["throughput"]) <= 21
    assert drawn["lanes"] == ["cluster", "pool", "cloud"]
    assert 'href="/console?span=day" aria-current="true"' in await shown(instance, "owner", "/console?span=day")
    async with visiting(instance, "owner") as owner:
        assert (await owner.get("/console?span=year")).status_code == 400
