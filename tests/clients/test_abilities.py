"""A model is offered for what its server does: GET /v1/models says so, and other requests say what is missing."""

import pytest
from aiohttp import web

from tests.clients.conftest import Served
from tests.fakes.provider_server import Handler, ProviderServer, Received, running


async def missing(request: web.Request, received: Received) -> web.Response:
    return web.json_response({"error": {"message": '"prompt" must be provided'}}, status=400)


async def not_supported(request: web.Request, received: Received) -> web.Response:
    """As llama-server without --embeddings answers."""
    error = {"code": 501, "message": "This server does not support embeddings.", "type": "not_supported_error"}
    return web.json_response({"error": error}, status=501)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/embeddings", {"input": "A mill"}),
        ("/v1/rerank", {"query": "a mill", "documents": ["a river"]}),
    ],
)
def test_a_llama_server_without_embeddings_is_not_asked_for_them(
    served: Served, path: str, asked: dict[str, object]
) -> None:
    gateway = served.gateway
    routes: dict[str, Handler] = {
        "/v1/completions": missing,
        "/v1/embeddings": not_supported,
        "/v1/rerank": not_supported,
    }
    with running(ProviderServer(routes, models=("plain",))) as desk:
        entry = {"name": "llama", "base_url": f"{desk.origin}/v1", "kind": "llama-server"}
        gateway.admin("/admin/pool/backends", entry)
        try:
            models = gateway.http().get("/v1/models").json()["data"]
            can = next(model["millrace"]["can"] for model in models if model["id"] == "plain")
            assert can == ["chat", "complete text"]
            probes = len(desk.requests)
            refused = gateway.http().post(path, json={"model": "plain"} | asked)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_feature")
            assert len(desk.requests) == probes, "the server was not asked"
        finally:
            gateway.admin("/admin/pool/backends/llama/remove", {"gone": True})
