"""GET /v1/models and /v1/models/{id}: every model of any lane, with its lanes and features."""

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.admin.catalogue import Entry, catalogue, find_entry
from gateway.api.edge import authenticate
from gateway.errors import ModelUnknown
from gateway.identity.gate import Gate
from gateway.lanes.base import Lanes


def routes(gate: Gate, lanes: Lanes) -> list[Route]:
    return [
        Route("/v1/models", partial(_list_models, gate, lanes)),
        Route("/v1/models/{name:path}", partial(_get_model, gate, lanes)),
    ]


async def _list_models(gate: Gate, lanes: Lanes, request: Request) -> Response:
    caller = await authenticate(gate, request.scope)
    return JSONResponse({"object": "list", "data": [_listed(entry) for entry in catalogue(lanes, caller)]})


async def _get_model(gate: Gate, lanes: Lanes, request: Request) -> Response:
    caller = await authenticate(gate, request.scope)
    name: str = request.path_params["name"]
    entry = find_entry(lanes, caller, name)
    if entry is None:
        raise ModelUnknown(f"Model '{name}' not found. List models with GET /v1/models.", param="model")
    return JSONResponse(_listed(entry))


def _listed(entry: Entry) -> dict[str, Any]:
    known = {
        "can": entry.kinds,
        "features": entry.features,
        "context_tokens": entry.context_tokens,
        "quantization": entry.quantization,
        "is_loaded": entry.is_resident,
        "weights": entry.weights,
    }
    extra = {"lanes": list(entry.lanes)} | {field: value for field, value in known.items() if value is not None}
    return {"id": entry.name, "object": "model", "created": 0, "owned_by": "millrace", "millrace": extra}
