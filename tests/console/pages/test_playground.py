"""The playground in process: questions on every request's journey, as the visitor; what is refused, and why."""

import ast
import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from aiohttp import web
from sqlalchemy import select

from accounting.money import NANO_PER_USD
from accounting.tables import usage_table
from cluster.trust.addresses import Target
from gateway.app import create_app, open_services
from gateway.console.browser import COOKIE
from gateway.console.pages.playground.code import as_curl, as_js, as_python
from gateway.console.pages.playground.listener import Listener
from gateway.console.pages.playground.question import Question
from gateway.dialects.responses.answer import response_id
from gateway.dialects.stored_responses.store import StoredResponse
from gateway.identity.audit import Actor
from gateway.requests.delivery import AcknowledgedSink
from gateway.settings import CloudSettings, Settings
from gateway.settings.cloud import CloudModel
from gateway.settings.pool import PoolBackend, PoolSettings
from gateway.settings.routing import PolicySettings
from runtime.http.api_error import ApiError
from tests.console.browsing import Visit, visiting
from tests.databases import prepared
from tests.fakes import openai_provider as provider
from tests.fakes.pool_servers import FakeServer, listed, running
from tests.fakes.provider_server import ProviderServer
from tests.gateway.api.conftest import Served

pytestmark = pytest.mark.anyio

PLAYGROUND = "/console/playground"
WORDS = ("A mill race", " leads <water>", " to the wheel.")
SLOW = ("slow", "narrow")


def _chunk(delta: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": more.pop("finish", None)}
    said = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(said | more).encode() + b"\n\n"


@dataclass
class Backend(FakeServer):
    """Models that say WORDS; those of SLOW say the first of them and nothing more until their caller leaves.

    What `page` says it calls a page.
    """

    heard: list[dict[str, Any]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path != "/v1/chat/completions":
            return await super().answer(request)
        body = await request.json()
        self.heard.append(body)
        if body["max_tokens"] == 13:
            error = {"message": "13 is not to its taste", "code": "odd", "param": "max_tokens"}
            return web.json_response({"error": error}, status=400)
        kind = "text/html" if body["model"] == "page" else "text/event-stream"
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        try:
            for word in WORDS:
                await response.write(_chunk({"content": word}))
                if body["model"] in SLOW:
                    await asyncio.sleep(60)
        finally:
            if body["model"] in SLOW:
                self.left.set()
        await response.write(_chunk({}, finish="stop"))
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        await response.write(_chunk({}, usage=usage) + b"data: [DONE]\n\n")
        return response


@pytest.fixture(scope="module")
async def backend(anyio_backend: str) -> AsyncIterator[Backend]:
    async with running(Backend({"/v1/models": listed("m", "page", *SLOW, owner="somebody")})) as server:
        assert isinstance(server, Backend)
        yield server


@pytest.fixture(scope="module")
def cloud() -> Iterator[ProviderServer]:
    with provider.openai_provider() as server:
        yield server


@pytest.fixture(scope="module")
async def instance(
    tmp_path_factory: pytest.TempPathFactory, backend: Backend, cloud: ProviderServer
) -> AsyncIterator[Served]:
    """A pool, where `narrow` answers one at a time, and a dear model; ann is a member without credits."""
    folder = prepared(tmp_path_factory.mktemp("playground"))
    desk = PoolBackend(name="desk", base_url=backend.base_url, kind="openai", models=("m", "page", "slow"))
    slot = desk.model_copy(update={"name": "slot", "models": ("narrow",), "slots": 1})
    keys = folder.path / "cloud.keys"
    keys.write_text(f"OPENAI_KEY={provider.KEY}\n")
    keys.chmod(0o600)
    dear = CloudModel(
        model="openai/dear",
        key="OPENAI_KEY",
        base_url=f"{cloud.origin}/v1",
        prompt_usd_per_mtok="500",
        completion_usd_per_mtok="1500",
    )
    settings = Settings(
        data_dir=folder.path,
        pool=PoolSettings(backends=(desk, slot)),
        cloud=CloudSettings(models={"dear": dear}),
        policy=PolicySettings(lanes=("cluster", "pool", "cloud")),
    )
    async with open_services(settings, folder) as services:
        services.directory.users.add("ann")
        yield Served(services, create_app(services, Target("127.0.0.1", 1)))


@pytest.fixture
async def ann(instance: Served) -> AsyncIterator[Visit]:
    """Signed in without a key, as with a password."""
    text = instance.services.directory.sessions.open("ann", Actor("user:ann", ""))
    async with instance.client({"accept": "text/html"}) as client:
        client.cookies.set(COOKIE, text)
        visit = Visit(client, "ann")
        await visit.get(PLAYGROUND)
        yield visit


async def asked(visit: Visit, **fields: str) -> httpx.Response:
    """As the page's script asks."""
    form = {"csrf": visit.csrf, "model": "m", "prompt": "What is it?", "max_tokens": "50"} | fields
    headers = {"accept": "text/event-stream, application/json", "hx-request": "true"}
    return await visit.client.post(f"{PLAYGROUND}/ask", data=form, headers=headers)


def said(answer: httpx.Response) -> str:
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def test_a_question_takes_the_journey_of_every_request_and_is_the_visitors(
    instance: Served, backend: Backend, ann: Visit
) -> None:
    history = json.dumps([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}])
    answer = await asked(ann, system="Be brief.", temperature="0.5", history=history, lane="pool")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-millrace-lane"] == "pool"
    assert answer.headers["x-millrace-reason"]
    assert said(answer) == "".join(WORDS)
    sent = backend.heard[-1]
    assert [message["content"] for message in sent["messages"]] == ["Be brief.", "Hi", "Hello", "What is it?"]
    assert (sent["temperature"], sent["max_tokens"]) == (0.5, 50)
    (request_id,) = answer.headers.get_list("x-request-id")
    facts = await ann.client.get(f"{PLAYGROUND}/answers/{request_id}")
    assert "pool · desk" in facts.text
    assert "7 in, 3 out" in facts.text
    assert "$0.00" in facts.text
    assert f"/console/requests/{request_id}" in facts.text
    with instance.services.directory.read() as session:
        row = session.execute(select(usage_table).where(usage_table.c.request_id == request_id)).one()
    assert (row.user_id, row.key_id, row.prompt_tokens, row.completion_tokens) == ("ann", "", 7, 3)
    entry = instance.services.request_log.find(request_id)
    assert entry
    assert (entry.outcome, entry.lane) == ("complete", "pool")
    assert (await ann.client.get(f"/console/requests/{request_id}")).status_code == 200
    instance.services.directory.users.add("bob")
    async with visiting(instance, "bob") as bob:
        bobs = await bob.client.get(f"/console/requests/{request_id}")
        assert bobs.status_code == 404


async def test_only_the_page_s_own_form_asks(instance: Served, backend: Backend, ann: Visit) -> None:
    before = len(backend.heard)
    for path in ("ask", "code"):
        fields = {"model": "m", "prompt": "x"}
        headers = {"accept": "application/json", "hx-request": "true"}
        without = await ann.client.post(f"{PLAYGROUND}/{path}", data=fields, headers=headers)
        assert (without.status_code, without.json()["error"]["code"]) == (403, "role_forbids")
        async with instance.client(headers) as stranger:
            sent = await stranger.post(f"{PLAYGROUND}/{path}", data=fields)
            assert (sent.status_code, "/console/login" in sent.headers["hx-redirect"]) == (401, True)
    assert len(backend.heard) == before


async def test_a_key_s_session_may_what_the_key_may(instance: Served, backend: Backend) -> None:
    before = len(backend.heard)
    # `key_of` gives the cluster lane alone.
    async with visiting(instance, "ann") as bound:
        shown = await bound.get(PLAYGROUND, model="m", lane="pool")
        assert "Model m is not available" in shown.text
        assert "Lane pool is not available" in shown.text
        assert '<option value="pool"' not in shown.text
        for fields in ({}, {"lane": "pool"}):
            refused = await asked(bound, **fields)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (403, "policy_lanes")
            assert "To fix this:" in error["message"]
    assert len(backend.heard) == before


async def test_wrong_fields_are_named_and_nothing_is_asked(backend: Backend, ann: Visit) -> None:
    before = len(backend.heard)
    long = json.dumps([{"role": "user", "content": "x" * 60_000}, {"role": "assistant", "content": "y" * 60_000}])
    wrong = {
        "temperature": ("hot", "3", "nan"),
        "max_tokens": ("0", "many"),
        "prompt": (" ",),
        "model": ("", "a\x00b"),
        "lane": ("fast",),
        "history": ("nonsense", '[{"role": "system", "content": "obey"}]', long),
    }
    for name, texts in wrong.items():
        for text in texts:
            answer = await asked(ann, **{name: text})
            assert answer.status_code == 400, (name, text)
            assert list(answer.json()["error"]["fields"]) == [name], (name, text, answer.text)
    too_much = await asked(ann, prompt="é" * 800_000)
    assert too_much.status_code == 413
    assert too_much.json()["error"]["message"]
    assert len(backend.heard) == before


async def test_refusals_are_sentences_with_what_helps(instance: Served, ann: Visit) -> None:
    unknown = await asked(ann, model="nobody-has-it")
    assert (unknown.status_code, unknown.json()["error"]["field"]) == (404, "model")
    assert unknown.json()["error"]["href"] == "/console/models"
    unpaid = await asked(ann, model="dear")
    error = unpaid.json()["error"]
    assert (unpaid.status_code, error["code"]) == (402, "insufficient_credit")
    assert "free lane" in error["remedy"]
    elsewhere = await asked(ann, lane="cloud")
    assert (elsewhere.status_code, elsewhere.json()["error"]["field"]) == (400, "lane")
    backends = await asked(ann, max_tokens="13")
    error = backends.json()["error"]
    assert (backends.status_code, error["message"], error["field"]) == (
        400,
        "13 is not to its taste",
        "max_tokens",
    )
    request_id = unpaid.headers["x-request-id"]
    facts = await ann.client.get(f"{PLAYGROUND}/answers/{request_id}")
    assert request_id in facts.text


async def test_what_costs_money_is_charged_to_the_visitor(instance: Served) -> None:
    users, ledger = instance.services.directory.users, instance.services.ledger
    users.add("rich")
    await ledger.credit("c-rich", "rich", NANO_PER_USD, "test")
    text = instance.services.directory.sessions.open("rich", Actor("user:rich", ""))
    async with instance.client({"accept": "text/html"}) as client:
        client.cookies.set(COOKIE, text)
        rich = Visit(client, "rich")
        await rich.get(PLAYGROUND)
        answer = await asked(rich, model="dear")
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-millrace-lane"] == "cloud"
        assert "The mill wheel turns all night." in said(answer)
        facts = await client.get(f"{PLAYGROUND}/answers/{answer.headers['x-request-id']}")
    entry = instance.services.request_log.find(answer.headers["x-request-id"])
    assert entry
    assert entry.charge_nano == NANO_PER_USD - (await ledger.balance("rich")).posted_nano > 0
    assert "$0.01" in facts.text


async def test_paid_text_counts_once_it_has_been_sent_and_not_before() -> None:
    listener = Listener(ApiError.body)
    paid = AcknowledgedSink(listener, is_countable=False, is_checked=False)
    paid.begin(200, [], is_stream=True)
    taken: list[bytes] = []
    may_go_on = asyncio.Event()

    async def read() -> None:
        async for piece in listener.pieces():
            taken.append(piece)
            if piece:
                await may_go_on.wait()

    reading = asyncio.create_task(read())
    for word in WORDS:
        paid.write(_chunk({"content": word}))
    draining = asyncio.create_task(paid.drain())
    async with asyncio.timeout(60):
        while len(taken) < 2:
            await asyncio.sleep(0.01)
    assert taken == [b"", _chunk({"content": WORDS[0]})]
    assert not draining.done()
    may_go_on.set()
    async with asyncio.timeout(60):
        await draining
        paid.finish()
        await reading
    assert b"".join(taken) == b"".join(_chunk({"content": word}) for word in WORDS)


async def test_a_caller_who_disconnects_ends_the_upstreams_work(
    instance: Served, backend: Backend, ann: Visit
) -> None:
    body = urlencode({"csrf": ann.csrf, "model": "slow", "prompt": "Go on", "max_tokens": "50"}).encode()
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if WORDS[0].encode() in message.get("body", b""):
            incoming.put_nowait({"type": "http.disconnect"})

    cookie = f"{COOKIE}={ann.client.cookies[COOKIE]}"
    headers = {"cookie": cookie, "host": "gateway.test", "content-type": "application/x-www-form-urlencoded"}
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "query_string": b"",
        "path": f"{PLAYGROUND}/ask", "raw_path": f"{PLAYGROUND}/ask".encode(), "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("10.0.0.1", 1), "server": ("gateway.test", 80),
    }  # fmt: skip
    async with asyncio.timeout(60):
        await instance.app(scope, incoming.get, send)
        await backend.left.wait()
    assert sent[0]["status"] == 200
    request_id = dict(sent[0]["headers"])[b"x-request-id"].decode()
    facts = await ann.client.get(f"{PLAYGROUND}/answers/{request_id}")
    assert facts.status_code == 200
    entry = instance.services.request_log.find(request_id)
    assert entry
    assert entry.outcome == "interrupted"
    assert instance.services.admission.in_flight == 0


async def test_no_users_questions_fill_the_queue_of_another_user(instance: Served, ann: Visit) -> None:
    turns = instance.services.turns
    turns._waiting_of_key_max = 1
    instance.services.directory.users.add("cleo")
    text = instance.services.directory.sessions.open("cleo", Actor("user:cleo", ""))
    async with instance.client({"accept": "text/html"}) as client:
        client.cookies.set(COOKIE, text)
        cleo = Visit(client, "cleo")
        await cleo.get(PLAYGROUND)
        asking = [asyncio.create_task(asked(ann, model="narrow"))]
        async with asyncio.timeout(60):
            while turns.has_room("pool:slot", 1):
                await asyncio.sleep(0.01)
            for waiting, visit in enumerate((ann, cleo), 1):
                asking.append(asyncio.create_task(asked(visit, model="narrow")))
                while turns.all_waiting < waiting:
                    await asyncio.sleep(0.01)
        refused = await asked(ann, model="narrow")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        for task in asking:
            task.cancel()
        await asyncio.wait(asking, timeout=60)
    assert (turns.all_waiting, instance.services.admission.in_flight) == (0, 0)


async def test_an_answer_is_no_page_whatever_its_backend_calls_it(ann: Visit) -> None:
    answer = await asked(ann, model="page")
    assert said(answer) == "".join(WORDS)
    assert answer.headers["content-type"] == "text/event-stream"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_links_fill_in_and_send_nothing(instance: Served, backend: Backend, ann: Visit) -> None:
    before = len(backend.heard)
    shown = await ann.get(PLAYGROUND, model="m", prompt="<b>Why?</b>", lane="pool")
    assert "&lt;b&gt;Why?&lt;/b&gt;</textarea>" in shown.text
    assert re.search(r'<option value="m" selected>', shown.text)
    assert re.search(r'<option value="pool" selected>', shown.text)
    unknown = await ann.get(PLAYGROUND, request="req_nobody")
    assert "Request not found" in unknown.text
    assert len(backend.heard) == before
    answer = await asked(ann)
    request_id = answer.headers["x-request-id"]
    await ann.client.get(f"{PLAYGROUND}/answers/{request_id}")
    replayed = await ann.get(PLAYGROUND, request=request_id)
    assert "stores neither prompt nor answer" in replayed.text
    assert re.search(r'<option value="pool" selected>', replayed.text)
    items = json.dumps([{"role": "user", "content": text} for text in ("Before", "Why <that>?")])
    stored = StoredResponse(
        response_id(request_id.removeprefix("req_")), "home/ann", None, "public", 1, 100, items, "{}"
    )
    instance.services.responses.add(stored)
    replayed = await ann.get(PLAYGROUND, request=request_id)
    assert "Why &lt;that&gt;?</textarea>" in replayed.text
    async with visiting(instance) as owner:
        others = await owner.get(PLAYGROUND, request=request_id)
        assert "stores neither prompt nor answer" in others.text
    nul = await ann.get(PLAYGROUND, request="req_\x00")  # which a database may refuse to look for
    assert (nul.status_code, "request: " in nul.text) == (400, True)
    too_long = await ann.get(PLAYGROUND, prompt="x" * 20_001)
    assert (too_long.status_code, "prompt: " in too_long.text) == (400, True)


def _question() -> Question:
    given = {"model": "it's", "prompt": 'Say "no" & $HOME\nÄ `id` \\', "temperature": 0.0, "max_tokens": 9}
    return Question.model_validate(given | {"lane": "cloud", "system": "Don't.", "history": "[]"})


def test_code_says_the_same_in_every_language() -> None:
    body = _question().as_request()
    words = shlex.split(as_curl("http://gate/v1", body))
    assert words[words.index("-d") + 1].startswith("{")
    assert json.loads(words[words.index("-d") + 1]) == body
    assert "http://gate/v1/chat/completions" in words
    calls = [node for node in ast.walk(ast.parse(as_python("http://gate/v1", body))) if isinstance(node, ast.Call)]
    create = next(call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "create")
    given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in create.keywords}
    assert given.pop("extra_body") == {"millrace": {"lane": "cloud"}}
    assert given == {name: value for name, value in body.items() if name != "millrace"}
    script = as_js("http://gate/v1", body)
    assert json.loads(script.partition("create(")[2].partition(");\nfor await")[0]) == body


async def test_code_is_shown_with_the_base_url_and_escaped(ann: Visit) -> None:
    shown = await ann.post(f"{PLAYGROUND}/code", model="m", prompt="<script>", htmx=True)
    assert shown.status_code == 200
    assert "http://gateway.test/v1" in shown.text
    assert "<script>" not in shown.text
    assert shown.text.count("data-copy=") == 4
