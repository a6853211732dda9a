"""What is asked every few seconds needs no framework, and answers as everything else does."""

import pytest

from tests.gateway.api.conftest import Serve


@pytest.mark.anyio
async def test_watching_and_listing_models_leaves_the_rest_unmade(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rest(*_: object) -> None:
        raise AssertionError("this needs no framework")

    monkeypatch.setattr("gateway.app.OnDemand", lambda _: rest)
    async with serve() as served:
        token = served.services.keys.create("test", ("cluster",))
        async with served.bearer(token) as client, served.client() as stranger:
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            assert (await client.head("/healthz")).status_code == 200
            assert (await client.get("/readyz")).json()["status"] == "ready"
            assert "millrace_in_flight 0.0" in (await client.get("/metrics")).text
            listed = await client.get("/v1/models?limit=1")
            assert listed.json() == {"object": "list", "data": []}
            assert listed.headers["x-request-id"].startswith("req_")
            unknown = await client.get("/v1/models/some/model%20name")
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
            assert "some/model name" in unknown.json()["error"]["message"]
            refused = await stranger.get("/v1/models")
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.anyio
async def test_other_methods_and_spellings_get_what_they_get_elsewhere(serve: Serve) -> None:
    async with serve() as served, served.client() as client:
        refused = await client.post("/healthz")
        assert (refused.status_code, refused.json()["error"]["code"]) == (405, "method_not_allowed")
        # No redirect either, which would lead to wherever Host says.
        assert (await client.get("/healthz/")).json()["error"]["code"] == "not_found"


@pytest.mark.anyio
async def test_a_defect_says_nothing_of_what_is_inside(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as served, served.client() as client:
        monkeypatch.setattr(type(served.services.metrics), "render", lambda _: 1 / 0)
        answered = await client.get("/metrics")
        assert answered.status_code == 500
        assert answered.json()["error"]["type"] == "server_error"
        assert "division" not in answered.text
