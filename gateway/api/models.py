"""GET /v1/models and /v1/models/{id}: every model that some lane has, with its lanes."""

from typing import Any

from fastapi import APIRouter, Request

from gateway.api.generate import authenticate
from gateway.errors import ModelUnknown
from gateway.openai import model_entry
from gateway.services import Services

router = APIRouter(prefix="/v1/models")


@router.get("")
async def list_models(request: Request) -> dict[str, Any]:
    services: Services = request.app.state.services
    await authenticate(services, request.scope)
    return {
        "object": "list",
        "data": [model_entry(name, lanes) for name, lanes in sorted(_lanes(services).items())],
    }


@router.get("/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    services: Services = request.app.state.services
    await authenticate(services, request.scope)
    lanes = _lanes(services).get(name)
    if lanes is None:
        raise ModelUnknown(
            f"The model '{name}' does not exist here. GET /v1/models lists what does.", param="model"
        )
    return model_entry(name, lanes)


def _lanes(services: Services) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for lane in services.lanes.values():
        for name in lane.models():
            found.setdefault(name, []).append(lane.name)
    return found
