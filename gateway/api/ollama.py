"""Ollama's routes other than chats: models, their features, and the version."""

from hashlib import sha256
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import Struct

from gateway.admin.catalogue import Entry, catalogue, find_entry
from gateway.api.authority import KeyCaller
from gateway.api.dialect_route import route_class
from gateway.api.edge import read_body
from gateway.app_state import Lanes, Settings
from gateway.dialects.ollama.errors import error_body
from gateway.dialects.openai import ModelName
from gateway.dialects.openai.reader import decode
from gateway.errors import ModelUnknown
from runtime.errors import RequestInvalid

router = APIRouter(prefix="/api", route_class=route_class(error_body))

Json = dict[str, Any]

# The version of Ollama whose API these routes follow: clients check it before they use newer fields.
API_VERSION = "0.13.0"
# The time of a model's last change is unknown, but clients require one.
_SINCE = "1970-01-01T00:00:00Z"
# Loaded models stay until another model is needed.
_EXPIRES = "9999-12-31T00:00:00Z"


class _Show(Struct, frozen=True):
    """Older clients send `name`."""

    model: ModelName | None = None
    name: ModelName | None = None


_show = msgspec.json.Decoder(_Show)


@router.get("/version")
async def version() -> Json:
    """Show the supported version of Ollama's API."""
    return {"version": API_VERSION, "server": "millrace"}


@router.get("/tags")
async def tags(caller: KeyCaller, lanes: Lanes) -> Json:
    """List every model that the key may use."""
    return {"models": [_listed(entry) for entry in catalogue(lanes, caller)]}


@router.get("/ps")
async def running(caller: KeyCaller, lanes: Lanes) -> Json:
    """List loaded models."""
    loaded = [entry for entry in catalogue(lanes, caller) if entry.is_resident]
    more = {"expires_at": _EXPIRES, "size_vram": 0}
    return {"models": [_listed(e) | more | {"context_length": e.context_tokens or 0} for e in loaded]}


@router.post("/show")
async def show(request: Request, caller: KeyCaller, settings: Settings, lanes: Lanes) -> Json:
    """Show a model's features in Ollama's format.

    Raises RequestInvalid if no model is named, and ModelUnknown if the caller may not use it.
    """
    raw = await read_body(request.scope, request.receive, settings.server.body_bytes_max)
    body = decode(_show, raw)
    name = body.model or body.name
    if name is None:
        raise RequestInvalid("model: missing", param="model", code="missing_required_parameter")
    entry = find_entry(lanes, caller, name)
    if entry is None:
        raise ModelUnknown(f"model '{name}' not found; list models with GET /api/tags", param="model")
    context = {"millrace.context_length": entry.context_tokens} if entry.context_tokens else {}
    return {
        "modelfile": f"FROM {name}\n",
        "parameters": "",
        "template": "",
        "details": _details(entry),
        "model_info": {"general.architecture": "millrace", "general.basename": name, **context},
        "capabilities": _capabilities(entry),
        "modified_at": _SINCE,
    }


def _listed(entry: Entry) -> Json:
    """Return a model's entry. Sizes are unknown here, and the digest only distinguishes names."""
    digest = sha256(entry.name.encode()).hexdigest()
    name = {"name": entry.name, "model": entry.name}
    return {**name, "modified_at": _SINCE, "size": 0, "digest": digest, "details": _details(entry)}


def _details(entry: Entry) -> Json:
    quantization = entry.quantization or ""
    family: Json = {"parent_model": "", "format": "", "family": "", "families": None, "parameter_size": ""}
    return {**family, "quantization_level": quantization}


def _capabilities(entry: Entry) -> list[str]:
    """Return a model's features in Ollama's terms."""
    found = {"chat": "completion", "embed": "embedding"}
    kinds = [word for kind, word in found.items() if kind in entry.kinds]
    return kinds + [feature for feature in ("tools", "vision") if feature in entry.features]
