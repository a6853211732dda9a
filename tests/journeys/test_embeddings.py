"""POST /v1/embeddings as its users travel it: the official client, a node process, the ledger, a pool backend."""

import base64
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
import torch

from tests.clusters import child
from tests.embedding_models import bert, expected, save
from tests.gateways import Gateway, running_gateway, until
from tests.openai_schemas import check

MODEL = "words"
TEXTS = ["w17 w30", "w4"]
TOKENS = [[2, 17, 30, 3], [2, 4, 3]]


@dataclass(frozen=True, slots=True)
class Served:
    gateway: Gateway
    wanted: torch.Tensor

    def is_wanted(self, *vectors: list[float]) -> None:
        torch.testing.assert_close(torch.tensor(vectors), self.wanted[: len(vectors)], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("embeddings")
    torch.set_num_threads(1)
    reference = save(folder / MODEL, bert(), "cls_token", normalize=True)
    settings = {"CLUSTER__EMBEDDING_MODEL": str(folder / MODEL), "CLUSTER__NODES": "1"}
    with running_gateway(folder / "data", model=None, settings=settings) as gateway:
        yield Served(gateway, expected(reference, "cls_token", TOKENS, normalize=True))


def test_the_official_client_gets_the_references_vectors(served: Served) -> None:
    client = served.gateway.openai()
    raw = client.embeddings.with_raw_response.create(model=MODEL, input=TEXTS, encoding_format="float")
    check("CreateEmbeddingResponse", json.loads(raw.content))
    answer = raw.parse()
    served.is_wanted(*(one.embedding for one in answer.data))
    assert [one.index for one in answer.data] == [0, 1]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (7, 7)
    assert raw.headers["x-millrace-lane"] == "cluster"
    # Without a format the client asks for base64 and decodes it.
    served.is_wanted(client.embeddings.create(model=MODEL, input=TEXTS[0]).data[0].embedding)
    whole = client.embeddings.create(model=MODEL, input=TOKENS, encoding_format="base64").data
    served.is_wanted(*(array("f", base64.b64decode(str(one.embedding))).tolist() for one in whole))
    served.is_wanted(client.embeddings.create(model=MODEL, input=TOKENS[0], dimensions=64).data[0].embedding)
    many = client.embeddings.create(model=MODEL, input=["w4"] * 50, encoding_format="float").data
    assert [one.index for one in many] == list(range(50))
    assert [model.id for model in client.models.list()] == [MODEL]


def test_every_request_is_booked_and_logged(served: Served) -> None:
    raw = served.gateway.openai().embeddings.with_raw_response.create(model=MODEL, input=TEXTS)
    record = served.gateway.record(raw.headers["x-request-id"])
    assert (record["kind"], record["lane"], record["backend"]) == ("embedding", "cluster", "embeddings")
    assert (record["prompt_tokens"], record["completion_tokens"], record["outcome"]) == (7, 0, "complete")
    assert record["event_seq"] > 0
    cluster = served.gateway.admin("/admin/cluster")
    [embedder] = cluster["deployments"]
    assert (embedder["model"], embedder["machines"]) == (MODEL, [cluster["nodes"][0]["node"]])


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "nothing"}, 404, "model_not_found", "model"),
        ({"input": ""}, 400, "invalid_value", "input"),
        ({"input": []}, 400, "invalid_value", "input"),
        ({"input": ["w4", ""]}, 400, "invalid_value", "input"),
        ({"input": ["w4"] * 2049}, 400, "invalid_value", "input"),
        ({"input": [[2, 3], []]}, 400, "invalid_value", "input"),
        ({"input": [[2, 3], "w4"]}, 400, None, "input"),
        ({"input": [2, 300]}, 400, "invalid_value", "input"),
        ({"input": "w5 " * 70}, 400, "context_length_exceeded", "input"),
        ({"dimensions": 32}, 400, "invalid_value", "dimensions"),
        ({"dimensions": 0}, 400, "invalid_value", "dimensions"),
        ({"encoding_format": "hex"}, 400, "invalid_value", "encoding_format"),
    ],
)
def test_bad_requests_are_refused_by_name(
    served: Served, fields: dict[str, object], status: int, code: str | None, param: str
) -> None:
    answer = served.gateway.http().post("/v1/embeddings", json={"model": MODEL, "input": "w4"} | fields)
    check("ErrorResponse", answer.json())
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error


def test_kinds_are_not_mixed_up_and_keys_are_checked(served: Served) -> None:
    client = served.gateway.openai()
    with pytest.raises(openai.BadRequestError) as chat:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "w4"}])
    assert "is an embedding model" in chat.value.message
    assert chat.value.code == "unsupported_feature"
    with pytest.raises(openai.AuthenticationError):
        served.gateway.openai("mr-wrong").embeddings.create(model=MODEL, input="w4")


def test_another_gateway_relays_to_this_one_as_to_any_pool_backend(served: Served, tmp_path: Path) -> None:
    backend = {"name": "desk", "base_url": served.gateway.base_url, "api_key": served.gateway.api_key}
    with running_gateway(tmp_path, model=None, settings={"POOL__BACKENDS": json.dumps([backend])}) as front:
        raw = front.openai().embeddings.with_raw_response.create(model=MODEL, input=TEXTS, encoding_format="float")
        check("CreateEmbeddingResponse", json.loads(raw.content))
        served.is_wanted(*(one.embedding for one in raw.parse().data))
        record = front.record(raw.headers["x-request-id"])
        assert (record["lane"], record["prompt_tokens"], record["outcome"]) == ("pool", 7, "complete")
        with pytest.raises(openai.BadRequestError):
            front.openai().embeddings.create(model=MODEL, input="w5 " * 70)


def test_the_next_request_is_answered_when_the_embedder_was_killed(served: Served) -> None:
    agent = next(process for process in served.gateway.processes() if child(process, "embedder"))
    victim = until(lambda: child(agent, "embedder"))
    victim.kill()
    served.is_wanted(served.gateway.openai().embeddings.create(model=MODEL, input=TEXTS[0]).data[0].embedding)
    assert served.gateway.http().get("/readyz").json()["status"] == "ready"
