"""An operator's faults stay with the operator: callers read no path, key's name, account or nano-dollar amount."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from accounting.chart import EXPENSE_OWN_USE
from accounting.ledger.balances import balance
from accounting.ledger.health import BrokenRule, findings
from runtime.data_folder import DataFolder
from runtime.database import open_engine, read_sessions
from tests.fakes import openai_provider as provider
from tests.fakes.broken_upstream import BrokenUpstream, broken_upstream, said
from tests.gateways import Gateway, running_gateway, until

WORDS = (
    "cannot load /srv/models/secret.gguf; is MODEL_FOLDER set? See C:\\models\\log.txt, /secret.gguf, "
    "C:\\Program Files\\Hidden\\log.txt, '/srv/my own/secret folder/x', /Users/bob/Hidden Support/secret/x"
)
INTERNALS = re.compile(
    r"/srv/|C:\\\\|[Ss]ecret|Hidden|bob|[A-Z]+_KEY\b|MODEL_FOLDER|MILLRACE_|_usd_per_mtok|keys_file|base_url|api_key\b|"
    r"\b(?:user|pool|seller|provider):[\w.@-]+:\w+|\b(?:asset|clearing|expense|income):\w+|\bnano\b"
)


@dataclass
class Instance:
    """A gateway whose operator has made every mistake, an owner, and Ann, who pays for what she uses."""

    gateway: Gateway
    keys_file: Path
    owner: httpx.Client
    ann: httpx.Client

    def ask(self, client: httpx.Client, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "What turns?"}], "max_tokens": 20}
        return client.post("/v1/chat/completions", json=body | fields)


def failing(status: int, words: str = WORDS) -> bytes:
    """What asks to be left alone asks it for longer than anybody waits."""
    return failing_with({"error": {"message": words, "code": None}}, status)


def failing_with(body: dict[str, Any], status: int = 422) -> bytes:
    content = json.dumps(body).encode()
    return (
        b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\nretry-after: 900\r\ncontent-length: %d\r\n\r\n%b"
        % (
            status,
            len(content),
            content,
        )
    )


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    folder = tmp_path_factory.mktemp("gateways")
    keys_file = folder / "cloud.keys"
    keys_file.write_text(f"GOOD_KEY={provider.KEY}\n")
    keys_file.chmod(0o600)
    with broken_upstream() as desk, provider.openai_provider() as cloud:
        desk.scripts = scripts()
        with running_gateway(
            folder / "data", model=None, nodes=0, settings=settings(desk, cloud.origin, keys_file)
        ) as (gateway):
            gateway.admin("/admin/users", {"user": "ann"})
            key = {"name": "ann", "user": "ann", "lanes": ["pool", "cloud"]}
            ann = str(gateway.admin("/admin/keys", key)["api_key"])
            # Of a member, who pays by credits, a limit is only a limit.
            gateway.cli("budget", "set", "user:ann", "0.01")
            yield Instance(gateway, keys_file, gateway.http(gateway.new_key("o", "pool,cloud")), gateway.http(ann))


def scripts() -> dict[str, tuple[Any, ...]]:
    error = b"data: " + json.dumps({"error": {"message": WORDS}}).encode() + b"\n\n"
    stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    return {f"answers-{status}": (failing(status),) for status in (400, 401, 404, 413, 422, 429, 500, 503)} | {
        "listed": (failing_with({"detail": [{"loc": ["body"], "msg": WORDS, "type": "value_error"}]}),),
        "template": (failing(400, f"Jinja Exception: {WORDS}"),),
        "first": (stream + error, "close"),
        "late": (stream + said("one") + error, "close"),
        "torn": (stream + said("one"), "reset"),
    }


def settings(desk: BrokenUpstream, cloud: str, keys_file: Path) -> dict[str, str]:
    backends = [
        *({"name": name, "base_url": desk.base_url, "models": [name]} for name in scripts()),
        {"name": "attic", "base_url": "http://127.0.0.1:9/v1", "models": ["gone-Q4_K_M"]},
        {"name": "closed", "base_url": f"{cloud}/v1"},
    ]
    price = {"prompt_usd_per_mtok": "3", "completion_usd_per_mtok": "15", "max_output_tokens": 1000}
    models = {
        name: {"model": "openai/fake", "key": key, "base_url": f"{cloud}/v1"} | price
        for name, key in (("good", "GOOD_KEY"), ("keyless", "OTHER_KEY"))
    }
    models["unpriced"] = {"model": "openai/nobody-knows-it"}
    return {
        "POOL__BACKENDS": json.dumps(backends),
        "CLOUD__MODELS": json.dumps(models),
        "CLOUD__KEYS_FILE": str(keys_file),
        "SERVER__HOST": "127.0.0.1",
    }


def refused(instance: Instance) -> dict[str, httpx.Response]:
    """Everything that goes wrong, by what was asked; the owner's credits are there for one test of them."""
    found = {
        script: instance.ask(instance.ann, script, user=script, stream=script in ("first", "torn", "late"))
        for script in scripts()
    }
    return found | {
        "no backend": instance.ask(instance.ann, "gone-Q4_K_M"),
        "no price": instance.ask(instance.ann, "unpriced"),
        "no credit": instance.ask(instance.ann, "good"),
        "no credit, as a message": instance.ann.post(
            "/v1/messages",
            json={"model": "good", "max_tokens": 20, "messages": [{"role": "user", "content": "What turns?"}]},
        ),
        "no pool": instance.ann.post(
            "/accounting/v1/credits/pool", json={"amount": "5"}, headers={"Idempotency-Key": "a"}
        ),
    }


def test_callers_read_nothing_of_the_operators_machine(instance: Instance) -> None:
    answers = refused(instance)
    instance.gateway.cli("credit", "add", "1", "--user", "ann")
    answers["no key"] = instance.ask(instance.ann, "keyless")
    answers["no key, streamed"] = instance.ask(instance.ann, "keyless", stream=True)
    folder = str(instance.keys_file.parent)
    for about, answer in answers.items():
        told = answer.text + str(answer.headers)
        assert answer.status_code >= 400 or '"error"' in answer.text, about
        assert not (found := INTERNALS.findall(told)), (about, found, answer.text)
        assert folder not in told, (about, answer.text)
        assert "cannot load" in answer.text or about not in ("late", "listed", "template", "answers-400"), about
    assert {answers[about].status_code for about in ("no credit", "no credit, as a message", "no pool")} == {402}
    assert answers["no credit"].json()["error"]["code"] == "insufficient_credit"
    assert "gone-Q4_K_M" in answers["no backend"].text
    assert answers["no key"].json()["error"]["code"] == "provider_key_missing"
    # The operator finds it in the log and in the request log.
    until(lambda: any("OTHER_KEY" in line and folder in line for line in instance.gateway.log) or None)
    record = instance.gateway.record(answers["no credit"].headers["x-request-id"])
    assert "user:ann:paid has 0 nano" in record["error"]


def test_the_console_shows_operators_alone_what_belongs_to_them(instance: Instance) -> None:
    instance.gateway.admin("/admin/users", {"user": "ben"})
    bens = str(instance.gateway.admin("/admin/keys", {"name": "b", "user": "ben", "lanes": ["cloud"]})["api_key"])
    refused_id = instance.ask(instance.gateway.http(bens), "good").headers["x-request-id"]
    until(lambda: instance.gateway.record(refused_id))
    shown = {}
    for name, key in (("ben", bens), ("owner", instance.gateway.api_key)):
        with httpx.Client(
            base_url=instance.gateway.base_url.removesuffix("/v1"), follow_redirects=True
        ) as browser:
            assert browser.post("/console/login", data={"key": key}).status_code == 200
            pages = (f"/console/requests/{refused_id}", "/console/requests", "/console", "/console/requests/csv")
            shown[name] = [browser.get(page).raise_for_status().text for page in pages]
    assert all("[account] has [amount] available" in text for text in shown["ben"])
    assert [INTERNALS.findall(text) for text in shown["ben"]] == [[]] * 4
    # The overview of a key's session is of that key alone.
    assert ["user:ben:paid has" in text for text in shown["owner"]] == [True, True, False, True]


def test_a_spending_limit_is_all_that_the_owner_needs(instance: Instance) -> None:
    assert instance.ask(instance.owner, "good").status_code == 402
    instance.gateway.cli("budget", "set", "user:owner", "0.001", "--per", "day")
    answer = until(lambda: found if (found := instance.ask(instance.owner, "good")).status_code == 200 else None)
    usage = answer.json()["usage"]
    charge_nano = 3000 * usage["prompt_tokens"] + 15_000 * usage["completion_tokens"]
    until(lambda: booked(instance) == (charge_nano, []) or None)
    refusal = instance.ask(instance.owner, "good", max_tokens=900).json()["error"]
    assert refusal["code"] == "budget_exceeded", refusal


def booked(instance: Instance) -> tuple[int, list[BrokenRule]]:
    """The expense of the owner's own use, and every broken rule of the ledger."""
    engine = open_engine(DataFolder(instance.gateway.folder).dsn)
    try:
        with read_sessions(engine)() as session:
            return balance(session, EXPENSE_OWN_USE).posted_nano, findings(session, time.time_ns())
    finally:
        engine.dispose()
