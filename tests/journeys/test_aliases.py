"""Aliases and the served name: callers name models of every lane as the owner wants, through a running gateway."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests import crowds
from tests.clusters import DEMO_MODEL
from tests.fakes import openai_provider as provider
from tests.gateway.cli.beside import millrace
from tests.gateways import Gateway, running_gateway

Json = dict[str, Any]

SERVED = "local-7b"
PRICE = {"prompt_usd_per_mtok": "3", "completion_usd_per_mtok": "15", "max_output_tokens": 1000}


@dataclass
class Served:
    gateway: Gateway
    owner: httpx.Client

    def alias(self, name: str, *models: str) -> None:
        done = millrace(self.gateway.folder, "pool", "alias", name, *models)
        assert done.exit_code == 0, done.stderr

    def ask(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}
        return self.owner.post("/v1/chat/completions", json=body | fields)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("aliases")
    keys = folder / "cloud.keys"
    keys.write_text(f"GOOD_KEY={provider.KEY}\n")
    keys.chmod(0o600)
    with provider.openai_provider() as cloud:
        model = {"model": "openai/fake", "key": "GOOD_KEY", "base_url": f"{cloud.origin}/v1"} | PRICE
        settings = {
            "CLUSTER__SERVED_NAME": SERVED,
            "CLOUD__MODELS": json.dumps({"large": model}),
            "CLOUD__KEYS_FILE": str(keys),
            "POOL__ALIASES": json.dumps({"of-the-settings": [SERVED]}),
        }
        with running_gateway(folder / "data", nodes=1, settings=settings) as gateway:
            gateway.cli("budget", "set", "user:owner", "1")
            yield Served(gateway, gateway.http(gateway.new_key("all", "cluster,pool,cloud")))


def test_callers_ask_for_the_clusters_model_by_its_served_name(served: Served) -> None:
    answer = served.ask(SERVED)
    assert (answer.status_code, answer.json()["model"]) == (200, SERVED), answer.text
    assert served.ask(DEMO_MODEL.name).status_code == 404
    listed = [model["id"] for model in served.owner.get("/v1/models").json()["data"]]
    assert sorted(listed) == ["large", "local-7b", "of-the-settings"]
    # What a command is told is a folder or an id of the hub, whatever callers say.
    loaded = millrace(served.gateway.folder, "run", str(DEMO_MODEL), "--json")
    assert (loaded.exit_code, json.loads(loaded.stdout)["model"]) == (0, SERVED), loaded.stderr
    kept = millrace(served.gateway.folder, "rm", DEMO_MODEL.name)
    assert "uses these files; the setting cluster.model names it" in kept.stderr


def test_an_alias_of_the_clusters_model_is_answered_by_the_cluster(served: Served) -> None:
    served.alias("gpt-4o-mini", SERVED)
    for name in ("gpt-4o-mini", "of-the-settings"):
        answer = served.ask(name, temperature=0)
        assert (answer.status_code, answer.headers["x-millrace-lane"]) == (200, "cluster"), answer.text
        assert (answer.headers["x-millrace-model"], answer.json()["model"]) == (SERVED, SERVED)
        assert served.gateway.record(answer.headers["x-request-id"])["model"] == name
    chunks = served.ask("gpt-4o-mini", stream=True).text
    assert f'"model":"{SERVED}"' in chunks.replace(" ", "")
    asked = {"max_tokens": 4, "messages": [{"role": "user", "content": "Once"}]}
    for body in ({"model": "gpt-4o-mini"}, {"model": SERVED}):
        counted = served.owner.post("/v1/messages/count_tokens", json=asked | body).raise_for_status().json()
        assert counted["input_tokens"] == served.ask(SERVED).json()["usage"]["prompt_tokens"]
    gone = millrace(served.gateway.folder, "pool", "unalias", "gpt-4o-mini")
    assert gone.exit_code == 0, gone.stderr
    assert served.ask("gpt-4o-mini").status_code == 404


def test_an_alias_of_a_providers_model_costs_what_the_model_does(served: Served) -> None:
    served.alias("gpt-5", "large")
    for fields in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
        answer = served.ask("gpt-5", **fields)
        assert (answer.status_code, answer.headers["x-millrace-lane"]) == (200, "cloud"), answer.text
        assert answer.headers["x-millrace-model"] == "large"
        row = served.gateway.record(answer.headers["x-request-id"])
        charged = 3000 * row["prompt_tokens"] + 15_000 * row["completion_tokens"]
        assert row["charge_nano"] == charged > 0, row


def test_a_limit_on_the_model_holds_for_its_aliases(served: Served) -> None:
    served.alias("small", SERVED)
    key = served.gateway.admin("/admin/keys", {"name": "limited", "user": "owner", "lanes": ["cluster"]})
    limit = {"measure": "requests", "amount": "1", "span": "day", "model": SERVED}
    crowds.order(served.gateway, "PUT", "quotas", {"scope": f"key:{key['key_id']}", **limit})
    client = served.gateway.http(str(key["api_key"]))
    body = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 1}
    assert client.post("/v1/chat/completions", json=body | {"model": "small"}).status_code == 200
    assert client.post("/v1/chat/completions", json=body | {"model": SERVED}).status_code == 429


@pytest.mark.parametrize(
    "models",
    [("nothing-here",), (SERVED, "nothing-here"), ("of-the-settings",), (DEMO_MODEL.name,)],
)
def test_what_is_no_model_of_any_lane_is_refused(served: Served, models: tuple[str, ...]) -> None:
    refused = millrace(served.gateway.folder, "pool", "alias", "gpt-4o", *models)
    assert (refused.exit_code, models[-1] in refused.stderr) == (2, True), refused.stderr
    assert "gpt-4o" not in millrace(served.gateway.folder, "pool", "aliases").stdout
