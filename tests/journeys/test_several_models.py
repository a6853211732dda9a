"""Two chat models and an embedder of one cluster, as callers and admins see them."""

import json
from collections.abc import Iterator

import pytest
import torch

from tests.cluster.test_deployments import save_chat
from tests.embedding_models import bert, expected, save
from tests.gateways import Gateway, running_gateway

WANTED = [[2, 17, 30, 3]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, torch.Tensor]]:
    folder = tmp_path_factory.mktemp("several")
    torch.set_num_threads(1)
    save_chat(folder / "words")
    encoder = save(folder / "encoder", bert(), "cls_token", normalize=True)
    models = [
        {"name": "words", "model": str(folder / "words"), "precision": "fp32", "context_tokens": 128},
        {"name": "vectors", "model": str(folder / "encoder"), "kind": "embedding"},
    ]
    settings = {"CLUSTER__MODELS": json.dumps(models), "CLUSTER__SLOTS": "4"}
    with running_gateway(folder / "data", nodes=1, settings=settings) as gateway:
        yield gateway, expected(encoder, "cls_token", WANTED, normalize=True)


def test_each_model_answers_under_its_name(served: tuple[Gateway, torch.Tensor]) -> None:
    gateway, wanted = served
    client = gateway.openai()
    first, *others = sorted(model.id for model in client.models.list())
    assert [first, *others] == sorted([first, "vectors", "words"])
    assert gateway.http().get("/readyz").status_code == 200
    for name, backend in ((first, "cluster"), ("words", "words")):
        raw = client.completions.with_raw_response.create(model=name, prompt="w17 w30", max_tokens=4)
        assert raw.parse().choices[0].text
        assert gateway.record(raw.headers["x-request-id"])["backend"] == backend
    [vector] = client.embeddings.create(model="vectors", input="w17 w30").data
    torch.testing.assert_close(torch.tensor([vector.embedding]), wanted, rtol=1e-4, atol=1e-5)


def test_admins_see_every_model(served: tuple[Gateway, torch.Tensor]) -> None:
    gateway, _ = served
    cluster = gateway.admin("/admin/cluster")
    node = cluster["nodes"][0]["node"]
    shown = [(each["model"], each["kind"], each["status"], each["machines"]) for each in cluster["deployments"]]
    assert shown == [
        (cluster["model"], "chat", "ready", [node]),
        ("words", "chat", "ready", [node]),
        ("vectors", "embedding", "ready", [node]),
    ]
    assert [each["context_tokens"] for each in cluster["deployments"]][1:] == [128, None]
