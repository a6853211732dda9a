"""Ollama's routes other than chats: models, their features, and the version."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import Struct

from gateway.admin.catalogue import Entry, catalogue, find_entry
from gateway.admin.cluster_model import IDLE_S_MAX, idle_left_s, remove_model
from gateway.api.authority import KeyCaller, Operator
from gateway.api.dialect_route import route_class
from gateway.api.edge import read_body
from gateway.app_state import Controller, Lanes, Settings
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
# Loaded models stay until another model is needed, unless they have an idle time.
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
async def running(caller: KeyCaller, lanes: Lanes, controller: Controller) -> Json:
    """List loaded models; a cluster model with an idle time expires at its end."""
    loaded = [entry for entry in catalogue(lanes, caller) if entry.is_resident]
    left_s = {
        state.model: state.idle_s if (left_s := idle_left_s(state)) is None else left_s
        for state in controller.topology().deployments
        if state.status == "ready" and state.idle_s is not None and not state.is_pinned
    }
    return {
        "models": [
            _listed(entry)
            | {"expires_at": _expires_at(entry, left_s), "size_vram": 0}
            | {"context_length": entry.context_tokens or 0}
            for entry in loaded
        ]
    }


@router.delete("/delete")
async def delete(request: Request, authority: Operator, settings: Settings, controller: Controller) -> Json:
    """Remove a model that was added to the cluster at run time; its files stay on disk.

    Raises RequestInvalid if no model is named, NotFound, and Conflict if the settings name it.
    """
    raw = await read_body(request.scope, request.receive, settings.server.body_bytes_max)
    await remove_model(authority, settings.cluster, controller, _named(raw))
    return {}


@router.post("/show")
async def show(request: Request, caller: KeyCaller, settings: Settings, lanes: Lanes) -> Json:
    """Show a model's features in Ollama's format.

    Raises RequestInvalid if no model is named, and ModelUnknown if the caller may not use it.
    """
    raw = await read_body(request.scope, request.receive, settings.server.body_bytes_max)
    name = _named(raw)
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


def _named(raw: bytes) -> str:
    body = decode(_show, raw)
    if (name := body.model or body.name) is None:
        raise RequestInvalid("model: missing", param="model", code="missing_required_parameter")
    return name


def _expires_at(entry: Entry, left_s: Mapping[str, float]) -> str:
    """Return the end of a model's idle time; `left_s` are those of the cluster's models, in seconds.

    A copy elsewhere has none.
    """
    loaded = [offer for offer in entry.offers if offer.is_resident]
    ends_s = [left_s.get(offer.model_there, math.inf) if offer.lane == "cluster" else math.inf for offer in loaded]
    end_s = max(ends_s, default=math.inf)
    if end_s > IDLE_S_MAX:
        return _EXPIRES
    return (datetime.now(UTC) + timedelta(seconds=end_s)).isoformat().replace("+00:00", "Z")


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
