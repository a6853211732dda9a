"""Requests: the log narrowed and in pages, one with reasons and money, rows as CSV; others' stay theirs."""

import csv
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import openai
import pytest
from fastapi import Response
from playwright.sync_api import Page, expect

from accounting.rules import burst, grants
from accounting.rules.held import CloudBill, Hold
from cluster.trust.addresses import Target
from gateway.app import create_app, open_services
from gateway.console import sheets
from gateway.console.access import Visitor
from gateway.console.live import LivePage
from gateway.console.navigation import PAGES
from gateway.console.pages.requests import one, request_list
from gateway.console.pages.requests.one import TEXT_MAX, steps_of, turns_of
from gateway.dialects.stored_responses.store import StoredResponse
from gateway.identity.key_rows import KeyTerms
from gateway.lanes.base import Offer
from gateway.routing.decision import Candidate, Decision, Rejection
from gateway.routing.policy import Objection
from gateway.routing.prediction import Prediction
from gateway.routing.rates import Load
from gateway.settings import Settings
from tests.accounting.ledgers import usage
from tests.clusters import DEMO_MODEL
from tests.console.browsing import admin_key, assert_accessible, sign_in, visiting
from tests.databases import prepared
from tests.gateway.api.conftest import Served
from tests.gateway.test_request_log import entry
from tests.gateways import Gateway, until

REQUESTS = "/console/requests"
HOUR_NS = 3600 * 10**9
_ROW = re.compile(r'<tr id="row-([^"]+)">')


def decision() -> Decision:
    """The pool leads with two seconds of waiting; the cloud is ruled out."""
    load = Load(10, 0, 0, 0, None, is_resident=True, is_stream=True)
    predicted = Prediction(3.0, 2.0, 0.0, 0.1, 20, 0, 0.0, 0, load)
    pool, cloud = Offer("pool", "desk", "m"), Offer("cloud", "big", "m")
    return Decision((Candidate(pool, predicted),), (Rejection(cloud, Objection("lane", ("cloud",))),), model="m")


@dataclass
class Marketplace(Served):
    """`tokens` and `ids` are of keys: two of ann's, one of bob's in the lab, one of eve's who is its admin."""

    tokens: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
async def instance(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Marketplace]:
    folder = prepared(tmp_path_factory.mktemp("requests"))
    async with open_services(Settings(data_dir=folder.path), folder) as services:
        instance = Marketplace(services, create_app(services, Target("127.0.0.1", 1)))
        users = services.directory.users
        users.add("ann")
        users.add_organization("lab", "The lab")
        users.add("eve", organization="lab", role="admin")
        users.add("bob", organization="lab")
        terms = KeyTerms(may_administer=True)
        for name in ("ann", "ann-2", "bob", "eve", "owner"):
            made = services.keys.issue(name, ("pool",), user_id=name.removesuffix("-2"), terms=terms)
            instance.tokens[name], instance.ids[name] = made.token, made.row.key_id
        now_ns = time.time_ns()
        rows: dict[str, dict[str, Any]] = {
            "req_ann": {"key_id": "ann", "model": "=1+1", "lane": "pool", "backend": "desk"},
            "req_ann2": {"key_id": "ann-2", "lane": "none", "status": 429, "outcome": "refused", "error": "+full"},
            "req_bob": {"key_id": "bob", "lane": "cloud", "backend": "openai", "charge_nano": 7_000_000},
            "req_old": {"key_id": "bob", "started_ns": now_ns - 3 * HOUR_NS, "status": 502, "outcome": "failed"},
        }
        services.request_log.add_all(
            [
                entry(name, **({"outcome": "complete"} | row | {"key_id": instance.ids[row["key_id"]]}))
                for name, row in rows.items()
            ]
        )
        until(lambda: services.request_log.find("req_old"))
        await services.ledger.book(grants.manual_credit("bob-1", "bob", 10**9, "test"))
        expires_ns = now_ns + HOUR_NS
        placed = await services.ledger.book(burst.hold("req_bob", "bob", 10**8, expires_ns))
        held = Hold("req_bob", "bob", 10**8, placed.transfer_seqs[0], expires_ns)
        used = usage("req_bob", key_id=instance.ids["bob"], user_id="bob", lane="cloud", provider="openai")
        bill = CloudBill("openai", 7_000_000, 7_000_000, "price-1")
        await services.ledger.book(burst.capture(held, bill, used))
        leased = usage("req_old", key_id=instance.ids["bob"], user_id="bob", outcome="failed")
        await services.ledger.book(burst.lease("lease-7", (), [(None, leased)], expires_ns=expires_ns))
        yield instance


async def rows(instance: Marketplace, who: str, **query: str) -> list[str]:
    """The ids that a visitor with that key sees."""
    async with visiting(instance, who.removesuffix("-2"), token=instance.tokens[who]) as visit:
        answer = await visit.get(REQUESTS, **query)
    assert answer.status_code == 200, answer.text
    return _ROW.findall(answer.text)


@pytest.mark.anyio
async def test_the_address_says_which_rows(instance: Marketplace) -> None:
    everything = ["req_bob", "req_ann2", "req_ann", "req_old"]
    assert sorted(await rows(instance, "owner")) == sorted(everything)
    recent_utc = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - 3600))
    for query, found in (
        ({"lane": "pool"}, ["req_ann"]),
        ({"model": "=1+1"}, ["req_ann"]),
        ({"key": instance.ids["bob"]}, ["req_bob", "req_old"]),
        ({"status": "4xx"}, ["req_ann2"]),
        ({"status": "502"}, ["req_old"]),
        ({"outcome": "refused"}, ["req_ann2"]),
        ({"last": "1h", "key": instance.ids["bob"]}, ["req_bob"]),
        ({"until": recent_utc}, ["req_old"]),
        ({"since": recent_utc, "status": "200"}, ["req_ann", "req_bob"]),
        ({"model": "no such"}, []),
    ):
        assert sorted(await rows(instance, "owner", **query)) == sorted(found), query


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "abc"),
        ("lane", "moon"),
        ("last", "9y"),
        ("since", "yesterday"),
        ("model", "a\0b"),
        ("until", "2020-01-01T00:00"),
    ],
)
async def test_a_wrong_filter_is_named_and_the_others_are_kept(
    instance: Marketplace, name: str, value: str
) -> None:
    async with visiting(instance, "owner") as owner:
        given = {"model": "kept", "status": "4xx", "since": "2021-01-01T00:00"} | {name: value}
        shown = await owner.get(REQUESTS, **given)
        assert shown.status_code == 400
        marked = re.findall(r'name="(\w+)"[^>]*aria-invalid', shown.text)
        assert marked == [name]
        if name != "model":
            assert 'value="kept"' in shown.text
        assert not _ROW.search(shown.text)
        assert (await owner.get(f"{REQUESTS}/csv", **given)).status_code == 400
        assert (await owner.get(f"{REQUESTS}/live", **given)).status_code == 400
        assert (await owner.get(REQUESTS, before="nonsense")).status_code == 400


async def test_the_live_page_can_be_drawn_while_there_is_nothing(
    instance: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had failed there, and rested for half a minute while the first request came."""
    pages: list[LivePage] = []

    async def keep(visitor: Visitor, live_page: LivePage) -> Response:
        pages.append(live_page)
        return Response()

    monkeypatch.setattr(request_list, "live_response", keep)
    async with visiting(instance, "owner") as owner:
        await owner.get(f"{REQUESTS}/live", model="asked by nobody")
    (region,) = await pages[0].render()
    assert "No matching requests" in region.drawn.text


@pytest.mark.anyio
async def test_everybody_sees_their_own_and_a_session_of_a_key_that_keys(instance: Marketplace) -> None:
    assert await rows(instance, "ann") == ["req_ann"]
    assert await rows(instance, "ann-2") == ["req_ann2"]
    assert sorted(await rows(instance, "eve")) == ["req_bob", "req_old"]
    async with visiting(instance, "ann", token=instance.tokens["ann"]) as ann:
        for other in ("req_ann2", "req_bob", "req_nowhere", "%00"):
            answer = await ann.get(f"{REQUESTS}/{other}")
            assert answer.status_code == (400 if other == "%00" else 404), other
        assert "Request not found" in (await ann.get(f"{REQUESTS}/req_bob")).text
        for path in (REQUESTS, f"{REQUESTS}/csv", f"{REQUESTS}/live"):
            assert (await ann.get(path, key=instance.ids["ann-2"])).status_code == 403, path
        assert "ann-2" not in (await ann.get(REQUESTS)).text
        assert [row["request"] for row in csv.DictReader(StringIO((await ann.get(f"{REQUESTS}/csv")).text))] == [
            "req_ann"
        ]


@pytest.mark.anyio
async def test_rows_as_csv_compute_nothing_and_end(instance: Marketplace, monkeypatch: pytest.MonkeyPatch) -> None:
    async with visiting(instance, "owner") as owner:
        answer = await owner.get(f"{REQUESTS}/csv")
        assert answer.headers["content-disposition"] == 'attachment; filename="requests.csv"'
        found = {row["request"]: row for row in csv.DictReader(StringIO(answer.text))}
        assert (found["req_ann"]["model"], found["req_ann2"]["error"]) == ("'=1+1", "'+full")
        assert (len(found), found["req_bob"]["charged_usd"]) == (4, "0.007")
        monkeypatch.setattr(sheets, "_ROWS_AT_ONCE", 2)
        assert (await owner.get(f"{REQUESTS}/csv")).text == answer.text, "in several looks"
        monkeypatch.setattr(sheets, "ROWS_MAX", 3)
        assert len((await owner.get(f"{REQUESTS}/csv")).text.splitlines()) == 4


@pytest.mark.anyio
async def test_one_request_has_its_reasons_its_money_and_a_way_to_try_again(
    instance: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = instance.services.request_log
    log.add_all([entry("req_why", key_id=instance.ids["ann"], lane="pool", backend="desk", decision=decision())])
    until(lambda: log.find("req_why"))
    async with visiting(instance, "owner") as owner:
        why = (await owner.get(f"{REQUESTS}/req_why")).text
        assert "pool:desk" in why
        assert "Excluded backends" in why
        assert "cloud" in why.partition("Excluded backends")[2]
        money = (await owner.get(f"{REQUESTS}/req_bob")).text
        assert re.search(r"Ledger entry</dt><dd>\d+ <span[^>]*>capture</span>, hold \d+", money)
        failed = (await owner.get(f"{REQUESTS}/req_old")).text
        assert "check its state on the Models page" in failed
        assert re.search(
            r"Ledger entry</dt><dd>\d+ <span[^>]*>lease</span>, reservation <code[^>]*>lease-7", failed
        )
        for is_built in (True, False):
            pages = [each for each in PAGES if is_built or each.title != "Playground"]
            monkeypatch.setattr(one, "pages_of", lambda _, pages=pages: pages)
            shown = (await owner.get(f"{REQUESTS}/req_why")).text
            assert ('/console/playground?request=req_why"' in shown) is is_built


@pytest.mark.anyio
async def test_stored_text_is_shown_to_whose_it_is_alone(instance: Marketplace) -> None:
    log, store = instance.services.request_log, instance.services.responses
    log.add_all([entry("req_said", key_id=instance.ids["ann"], lane="pool", kind="chat")])
    until(lambda: log.find("req_said"))
    store.add(stored("home/ann", [{"role": "user", "content": "My <secret>"}], "Yours."))
    async with visiting(instance, "ann", token=instance.tokens["ann"]) as ann:
        shown = (await ann.get(f"{REQUESTS}/req_said")).text
        assert "My &lt;secret&gt;" in shown
        assert "Yours." in shown
    async with visiting(instance, "owner") as owner:
        shown = (await owner.get(f"{REQUESTS}/req_said")).text
        assert "secret" not in shown
        assert "Prompts are not stored." in shown


def stored(owner: str, said: list[dict[str, Any]], answer: str) -> StoredResponse:
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]}]
    input_text, answer_text = json.dumps(said), json.dumps({"output": output})
    size_bytes = len(input_text) + len(answer_text)
    return StoredResponse("resp_said", owner, None, "public", time.time_ns(), size_bytes, input_text, answer_text)


def test_turns_are_cut_and_what_is_no_text_is_named() -> None:
    said: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "look"}, {"type": "input_image"}]},
        {"type": "function_call", "name": "find", "arguments": '{"a":1}'},
        {"type": "function_call_output", "output": "x" * (TEXT_MAX + 5)},
    ]
    turns = turns_of(stored("home/ann", said, "done"))
    assert [(turn.who, turn.text[:20], turn.left_out) for turn in turns] == [
        ("user", "look\n[input_image]", 0),
        ("calls a tool", 'find({"a":1})', 0),
        ("tool", "x" * 20, 5),
        ("assistant", "done", 0),
    ]


@pytest.mark.parametrize(
    ("decided_ms", "ttft_ms", "duration_ms", "expected"),
    [
        (200, 500, 1000, [("decision", 200, 20), ("first token", 300, 30), ("end", 500, 50)]),
        (None, 500, 1000, [("first token", 500, 50), ("end", 500, 50)]),
        (200, None, 1000, [("decision", 200, 20), ("end", 800, 80)]),
        (None, None, 0, [("end", 0, 100)]),
        # Each is rounded by itself.
        (7, 6, 6, [("decision", 6, 100), ("first token", 0, 0), ("end", 0, 0)]),
    ],
)
def test_the_timeline_has_what_a_request_reached(
    decided_ms: int | None, ttft_ms: int | None, duration_ms: int, expected: list[tuple[str, int, float]]
) -> None:
    row = entry(
        "r",
        lane="pool",
        backend="desk",
        decided_ms=decided_ms,
        ttft_ms=ttft_ms,
        duration_ms=duration_ms,
        decision=decision().as_data(),
    )
    steps = steps_of(row)
    assert [(step.ends, step.took_ms, step.share) for step in steps] == expected
    assert sum(step.took_ms for step in steps) == duration_ms
    if len(steps) == 3:
        foretold = [step.foretold_ms for step in steps]
        assert foretold == pytest.approx([2000, 1000, 2000], rel=0.2)


@pytest.mark.browser
def test_the_log_is_live_and_one_request_opens_in_the_drawer(page: Page, gateway: Gateway) -> None:
    sign_in(page, gateway, f"{REQUESTS}?lane=cluster", key=admin_key(gateway))
    expect(page.get_by_role("heading", name="Requests", level=1)).to_be_visible()
    rows = page.locator("#request-rows tbody tr")
    expect(rows.first).to_contain_text("cluster: about")
    page.wait_for_selector("body[data-live=on]")
    newest = rows.first.get_attribute("id") or ""
    answer = gateway.openai().responses.create(
        model=DEMO_MODEL.name, input="A question that is kept", max_output_tokens=6, store=True
    )
    # What the filter wants, and nothing else, comes without being asked for.
    with pytest.raises(openai.NotFoundError):
        gateway.openai().chat.completions.create(model="none-such", messages=[{"role": "user", "content": "?"}])
    expect(page.locator(f"#request-rows tbody tr:first-child:not(#{newest})")).to_be_visible()
    expect(page.locator("#request-rows")).not_to_contain_text("none-such")
    assert_accessible(page)

    rows.first.get_by_role("link").click()
    drawer = page.get_by_role("dialog", name="Request")
    for text in ("Timeline", "Why this lane", "Candidates", "Ledger entry", answer.id.removeprefix("resp_")):
        expect(drawer).to_contain_text(text)
    expect(drawer.locator("pre").first).to_have_text("A question that is kept")
    assert_accessible(page)
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(rows.first.get_by_role("link")).to_be_focused()

    rows.first.get_by_role("link").click()
    drawer.get_by_role("link", name="Open as page").click()
    expect(page.get_by_role("heading", name="Timeline", level=2)).to_be_visible()
    assert_accessible(page)
    page.goto(f"{gateway.root}{REQUESTS}/req_nowhere")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    assert_accessible(page)


@pytest.mark.browser
def test_filters_stand_in_the_address_and_wrong_ones_beside_their_field(page: Page, gateway: Gateway) -> None:
    sign_in(page, gateway, REQUESTS, key=admin_key(gateway))
    page.get_by_label("Lane").select_option("cluster")
    page.get_by_label("Status").fill("nope")
    page.get_by_text("Exact times").click()
    page.get_by_label("From").fill("2020-01-01T00:00:30")
    page.get_by_role("button", name="Apply filter").click()
    expect(page.get_by_text("Enter a status such as 429 or 4xx.")).to_be_visible()
    expect(page.get_by_label("Lane")).to_have_value("cluster")
    expect(page.get_by_label("From")).to_have_value("2020-01-01T00:00:30")
    assert_accessible(page)
    page.get_by_label("Status").fill("2xx")
    page.get_by_role("button", name="Apply filter").click()
    expect(page.locator("#request-rows tbody tr").first).to_be_visible()
    assert "lane=cluster" in page.url
    assert "status=2xx" in page.url
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.path().read_text().startswith("time,request,key")
    page.get_by_label("Model").fill("nobody has this")
    page.get_by_role("button", name="Apply filter").click()
    expect(page.get_by_text("No matching requests")).to_be_visible()
    assert_accessible(page)
