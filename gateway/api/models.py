"""GET /v1/models and /v1/models/{id}: every model that some lane has, with its lanes and what it can do."""

from typing import Any

from fastapi import APIRouter, Request

from gateway.api.catalogue import Entry, catalogue, find_entry
from gateway.api.edge import authenticate
from gateway.errors import ModelUnknown
from gateway.openai import model_entry
from gateway.services import Services

router = APIRouter(prefix="/v1/models")


@router.get("")
async def list_models(request: Request) -> dict[str, Any]:
    services: Services = request.app.state.services
    caller = await authenticate(services, request.scope)
    return {"object": "list", "data": [_listed(entry) for entry in catalogue(services, caller)]}


@router.get("/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    services: Services = request.app.state.services
    caller = await authenticate(services, request.scope)
    entry = find_entry(services, caller, name)
    if entry is None:
        raise ModelUnknown(
            f"The model '{name}' does not exist here. GET /v1/models lists what does.", param="model"
        )
    return _listed(entry)


def _listed(entry: Entry) -> dict[str, Any]:
    return model_entry(
        entry.name,
        list(entry.lanes),
        can=entry.kinds,
        features=entry.features,
        context_tokens=entry.context_tokens,
        quantization=entry.quantization,
        is_loaded=entry.is_resident,
    )
