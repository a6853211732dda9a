"""Pool and cloud: which lane answers and why, what it costs, and what happens when a backend fails."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from accounting.money import format_usd, parse_usd
from tests.clusters import DEMO_MODEL
from tests.fakes import anthropic_provider as anthropic
from tests.fakes import openai_provider as provider
from tests.fakes.provider_server import ProviderServer
from tests.gateways import PATIENCE_S, Gateway, running_gateway, until

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What turns all night?"}]
TEXT = "The mill wheel turns all night."
BEHAVIOURS = ("fake", "fake.slow-chunks", "fake.aborts", "fake.fails-midway", "fake.bad-key", "fake.rate-limited")
PROMPT_USD, COMPLETION_USD = "3", "15"


@dataclass
class Lanes:
    """A gateway with a pool backend, two cloud providers, and a cluster model that fits nowhere."""

    gateway: Gateway
    desk: ProviderServer
    cloud: ProviderServer
    cloud_key: str

    def client(self) -> openai.OpenAI:
        return self.gateway.openai(self.cloud_key)

    def balance(self) -> dict[str, int]:
        found = self.gateway.http(self.cloud_key).get("/accounting/v1/balance").raise_for_status().json()
        return {name: parse_usd(found["paid"][name]) for name in ("credits", "held", "available")}

    def wait_until_nothing_is_held(self) -> None:
        """A few seconds after requests that followed each other, what their lease has unused is given back."""
        until(lambda: self.balance()["held"] == 0 or None)


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lanes]:
    folder = tmp_path_factory.mktemp("lanes")
    keys = folder / "cloud.keys"
    keys.write_text(f"OPENAI_KEY={provider.KEY}\nANTHROPIC_KEY={anthropic.KEY}\n")
    keys.chmod(0o600)
    with (
        provider.openai_provider() as desk,
        provider.openai_provider() as cloud,
        anthropic.anthropic_provider() as claude,
    ):
        backends = [
            {
                "name": "desk",
                "base_url": f"{desk.origin}/v1",
                "api_key": provider.KEY,
                "models": ["fake", "fake.crashes", "fake.slow-chunks", "fake.no-usage"],
            },
            {"name": "attic", "base_url": "http://127.0.0.1:9/v1", "models": ["fake", "fake.attic"]},
        ]
        models = {f"gpt-{name}": cloud_model("openai", name, f"{cloud.origin}/v1") for name in BEHAVIOURS}
        models |= {"claude": cloud_model("anthropic", "fake", claude.origin)}
        models |= {"fake.crashes": cloud_model("openai", "fake", f"{cloud.origin}/v1")}
        models |= {DEMO_MODEL.name: cloud_model("openai", "fake", f"{cloud.origin}/v1")}
        models |= {"unpriced": {"model": "openai/nobody-knows-it"}}
        settings = {
            "POOL__BACKENDS": json.dumps(backends),
            "CLOUD__MODELS": json.dumps(models),
            "CLOUD__KEYS_FILE": str(keys),
            "CLUSTER__MEMORY_SHARE": "0.0001",
        }
        with running_gateway(
            folder / "data",
            nodes=1,
            settings=settings,
            from_templates=False,  # What a real child shows of its environment is looked at.
        ) as gateway:
            gateway.cli("credit", "add", "5.00")
            yield Lanes(gateway, desk, cloud, gateway.new_key("cloud", "cluster,pool,cloud"))


def cloud_model(kind: str, name: str, base_url: str) -> dict[str, Any]:
    return {
        "model": f"{kind}/{name}",
        "key": f"{kind.upper()}_KEY",
        "base_url": base_url,
        "prompt_usd_per_mtok": PROMPT_USD,
        "completion_usd_per_mtok": COMPLETION_USD,
        "max_output_tokens": 1000,
    }


def price_of(prompt_tokens: int, completion_tokens: int) -> int:
    """In nano-USD, by hand: dollars per million tokens are thousands of nano-dollars per token."""
    return prompt_tokens * int(PROMPT_USD) * 1000 + completion_tokens * int(COMPLETION_USD) * 1000


def test_the_pool_relays_bytes_untouched(lanes: Lanes) -> None:
    body = {"model": "fake", "messages": QUESTION, "stream": True, "some_new_field": {"kept": [1, 2]}}
    with lanes.gateway.http() as client:
        answer = client.post("/v1/chat/completions", json=body)
    received = lanes.desk.last("fake")
    direct = httpx.post(
        f"{lanes.desk.origin}/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {provider.KEY}"},
        trust_env=False,
        timeout=PATIENCE_S,
    )
    assert answer.headers["x-millrace-lane"] == "pool"
    assert answer.text == direct.text
    assert received.body == body | {"stream_options": {"include_usage": True}}
    assert lanes.gateway.api_key not in str(received.headers)
    record = lanes.gateway.record(answer.headers["x-request-id"])
    assert (record["lane"], record["backend"], record["outcome"]) == ("pool", "desk", "complete")
    assert record["completion_tokens"] > 0
    assert record["charge_nano"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_usage_is_counted_and_complete(lanes: Lanes, stream: bool) -> None:
    with lanes.gateway.http() as client:
        body = {"model": "fake.no-usage", "messages": QUESTION, "stream": stream}
        answer = client.post("/v1/chat/completions", json=body)
    assert lanes.desk.last("fake.no-usage").headers["accept-encoding"] == "identity"
    record = lanes.gateway.record(answer.headers["x-request-id"])
    assert record["outcome"] == "complete"
    # One for each event with text in it, or a quarter of the text's bytes where it comes whole.
    assert record["completion_tokens"] == (6 if stream else 8)
    assert 4 < record["prompt_tokens"] < 20


def test_a_backend_that_is_down_is_not_asked(lanes: Lanes) -> None:
    with pytest.raises(openai.InternalServerError, match="attic"):
        lanes.client().chat.completions.create(model="fake.attic", messages=QUESTION)


@pytest.mark.parametrize("model", ["gpt-fake", "claude"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_cloud_answers_and_is_paid_exactly(lanes: Lanes, model: str, stream: bool) -> None:
    before = lanes.balance()
    raw = lanes.client().chat.completions.with_raw_response.create(model=model, messages=QUESTION, stream=stream)
    parsed: Any = raw.parse()
    if stream:
        chunks = list(parsed)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        # The gateway asked the provider for the usage; the caller did not, and sees none.
        assert all(chunk.usage is None for chunk in chunks)
    else:
        text = parsed.choices[0].message.content
    assert text == TEXT
    assert raw.headers["x-millrace-lane"] == "cloud"
    record = lanes.gateway.record(raw.headers["x-request-id"])
    assert record["charge_nano"] == price_of(record["prompt_tokens"], record["completion_tokens"]) > 0
    after = lanes.balance()
    assert before["credits"] - after["credits"] == record["charge_nano"]
    lanes.wait_until_nothing_is_held()


def test_usage_reaches_the_caller_who_asks(lanes: Lanes) -> None:
    stream = lanes.client().chat.completions.create(
        model="gpt-fake", messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    usages = [chunk.usage for chunk in stream if chunk.usage]
    assert len(usages) == 1
    assert usages[0].completion_tokens > 0


def test_a_key_without_the_cloud_is_told_the_rule(lanes: Lanes) -> None:
    with pytest.raises(openai.PermissionDeniedError, match="rule 'lanes' of key mr-") as denied:
        lanes.gateway.openai().chat.completions.create(model="gpt-fake", messages=QUESTION)
    assert denied.value.code == "policy_lanes"


def test_what_no_model_can_do_is_not_blamed_on_the_key(lanes: Lanes) -> None:
    with pytest.raises(openai.BadRequestError, match="does not embed") as refused:
        lanes.gateway.openai().embeddings.create(model="gpt-fake", input="A mill")
    assert (refused.value.code, refused.value.param) == ("unsupported_feature", "model")


def test_what_fits_nowhere_goes_to_the_cloud_or_names_the_rule(lanes: Lanes) -> None:
    raw = lanes.client().chat.completions.with_raw_response.create(model=DEMO_MODEL.name, messages=QUESTION)
    assert raw.headers["x-millrace-lane"] == "cloud"
    assert "MiB short" in raw.headers["x-millrace-reason"]
    with pytest.raises(openai.PermissionDeniedError, match=r"MiB short.*rule 'lanes'"):
        lanes.gateway.openai().chat.completions.create(model=DEMO_MODEL.name, messages=QUESTION)


def test_without_credit_nothing_is_sent(lanes: Lanes) -> None:
    sent = len(lanes.cloud.requests)
    with pytest.raises(openai.APIStatusError) as denied:
        lanes.client().chat.completions.create(model="gpt-fake", messages=QUESTION, max_tokens=9_000_000)
    assert denied.value.status_code == 402
    assert denied.value.code == "insufficient_credit"
    assert len(lanes.cloud.requests) == sent
    lanes.wait_until_nothing_is_held()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, {"max_tokens": 1000}),
        ({"max_tokens": 70}, {"max_tokens": 70}),
        ({"max_completion_tokens": 80}, {"max_completion_tokens": 80}),
    ],
)
def test_the_provider_is_told_the_bound_that_the_hold_rests_on(
    lanes: Lanes, fields: dict[str, int], told: dict[str, int]
) -> None:
    lanes.client().chat.completions.create(model="gpt-fake", messages=QUESTION, extra_body=fields)
    body = lanes.cloud.last("fake").body
    assert {name: value for name, value in body.items() if name.startswith("max_")} == told


PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/huge.png"}}
FUNCTION = {"type": "function", "function": {"name": "x", "parameters": {"type": "object"}}}
MARKED = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"service_tier": "priority"}, "service_tier"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "alloy"}}, "modalities"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"tools": [{"type": "mcp", "server_url": "https://example.org"}]}, "tools[0]"),
        ({"tools": [FUNCTION, {"googleSearch": {}}]}, "tools[1].function.name"),
        ({"tools": [FUNCTION | {"cache_control": {"type": "ephemeral"}}]}, "tools[0].cache_control"),
        ({"messages": [{"role": "user", "content": [MARKED]}]}, "messages[0].content[0].cache_control"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "messages[0].content[0].image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0]"),
    ],
)
def test_what_the_price_list_does_not_cover_is_not_bought(
    lanes: Lanes, fields: dict[str, Any], param: str
) -> None:
    sent = len(lanes.cloud.requests)
    with lanes.gateway.http(lanes.cloud_key) as client:
        body = {"model": "gpt-fake", "messages": QUESTION} | fields
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert len(lanes.cloud.requests) == sent


def test_a_lane_that_is_asked_for_says_itself_what_it_lacks(lanes: Lanes) -> None:
    """The pool has the model and the feature, but is not what was asked for."""
    extra = {"millrace": {"lane": "cloud"}, "service_tier": "flex"}
    with pytest.raises(openai.BadRequestError) as refused:
        lanes.client().chat.completions.create(model="fake.crashes", messages=QUESTION, extra_body=extra)
    assert refused.value.param == "service_tier"


def test_depth_that_cannot_be_passed_on_is_refused(lanes: Lanes) -> None:
    deep = b'{"a":' * 400 + b"1" + b"}" * 400
    body = json.dumps({"model": "gpt-fake", "messages": QUESTION, "millrace": {}}).encode()
    with lanes.gateway.http(lanes.cloud_key) as client:
        answer = client.post("/v1/chat/completions", content=body[:-1] + b',"response_format":' + deep + b"}")
    assert answer.status_code == 400
    lanes.wait_until_nothing_is_held()


def test_no_price_no_service(lanes: Lanes) -> None:
    with pytest.raises(openai.InternalServerError, match="has no price on the"):
        lanes.client().chat.completions.create(model="unpriced", messages=QUESTION)


def test_a_backend_that_fails_first_is_replaced_unnoticed(lanes: Lanes) -> None:
    raw = lanes.client().chat.completions.with_raw_response.create(model="fake.crashes", messages=QUESTION)
    assert raw.parse().choices[0].message.content == TEXT
    assert raw.headers["x-millrace-lane"] == "cloud"
    assert "took over from pool:desk" in raw.headers["x-millrace-reason"]


def test_hanging_up_stops_the_provider_and_pays_for_what_came(lanes: Lanes) -> None:
    lanes.wait_until_nothing_is_held()  # Else a charge of the last test may come after this balance.
    before = lanes.balance()
    with lanes.gateway.http(lanes.cloud_key).stream(
        "POST",
        "/v1/chat/completions",
        json={"model": "gpt-fake.slow-chunks", "messages": QUESTION, "stream": True},
    ) as answer:
        lines = answer.iter_lines()
        for _ in range(12):
            next(lines)
    lanes.cloud.wait_until("fake.slow-chunks", "cancelled")
    record = lanes.gateway.record(answer.headers["x-request-id"])
    assert record["outcome"] == "interrupted"
    assert 0 < record["completion_tokens"] < 400
    charged = until(lambda: before["credits"] - lanes.balance()["credits"] or None)
    assert charged == record["charge_nano"] == price_of(record["prompt_tokens"], record["completion_tokens"])
    lanes.wait_until_nothing_is_held()


@pytest.mark.parametrize("model", ["gpt-fake.aborts", "gpt-fake.fails-midway"])
def test_an_answer_that_breaks_off_says_so(lanes: Lanes, model: str) -> None:
    with lanes.gateway.http(lanes.cloud_key) as client:
        answer = client.post("/v1/chat/completions", json={"model": model, "messages": QUESTION, "stream": True})
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert "[DONE]" not in events
    assert json.loads(events[-1])["error"]["message"]
    record = lanes.gateway.record(answer.headers["x-request-id"])
    assert record["outcome"] == "failed"
    assert record["charge_nano"] == price_of(record["prompt_tokens"], record["completion_tokens"])
    lanes.wait_until_nothing_is_held()


def test_a_providers_refusal_is_not_the_callers(lanes: Lanes) -> None:
    with pytest.raises(openai.InternalServerError) as bad_key:
        lanes.client().chat.completions.create(model="gpt-fake.bad-key", messages=QUESTION)
    assert bad_key.value.status_code == 502
    assert bad_key.value.code == "provider_auth_failed"
    with pytest.raises(openai.RateLimitError) as limited:
        lanes.client().chat.completions.create(
            model="gpt-fake.rate-limited", messages=QUESTION, extra_body={"millrace": {"deadline_s": 3}}
        )
    assert limited.value.code == "provider_rate_limited"
    assert limited.value.response.headers["retry-after"] == "7"
    lanes.wait_until_nothing_is_held()


def test_a_caller_may_choose_the_lane(lanes: Lanes) -> None:
    raw = lanes.client().chat.completions.with_raw_response.create(
        model="fake.crashes", messages=QUESTION, extra_body={"millrace": {"lane": "cloud"}}
    )
    assert raw.headers["x-millrace-lane"] == "cloud"
    with pytest.raises(openai.BadRequestError, match="asks for the cluster lane"):
        lanes.client().chat.completions.create(
            model="fake", messages=QUESTION, extra_body={"millrace": {"lane": "cluster"}}
        )


def test_secrets_stay_secret(lanes: Lanes, tmp_path: Path) -> None:
    log = "".join(lanes.gateway.log)
    for secret in (provider.KEY, anthropic.KEY, lanes.cloud_key, lanes.gateway.api_key):
        assert secret not in log
    for process in lanes.gateway.processes():
        shown = " ".join(process.cmdline()) + str(
            process.environ() if process.pid != lanes.gateway.process.pid else ""
        )
        for secret in (anthropic.KEY, lanes.cloud_key):
            assert secret not in shown
    # The newest rows stand in the write-ahead log beside the database.
    database = b"".join(path.read_bytes() for path in lanes.gateway.folder.glob("millrace.db*"))
    assert lanes.cloud_key[:10].encode() in database
    for secret in (lanes.cloud_key, lanes.gateway.api_key, provider.KEY, anthropic.KEY):
        assert secret.encode() not in database
    assert format_usd(0) == "0.00"
