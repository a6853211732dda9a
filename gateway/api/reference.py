"""Every route as a page of documentation: `python -m gateway.api.reference > docs/api.md`.

FastAPI's routes come from its OpenAPI description: a handler's first sentence says what it does, and its
dependencies say who may call it. Hot routes have no framework; a table here describes them.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts

from gateway.api import (
    admin,
    advice,
    batches,
    deployments,
    files,
    messages,
    ollama,
    preemptible,
    responses,
    routes_admin,
)
from gateway.api import pool as pool_api
from gateway.api.accounting import ledger
from gateway.api.accounting.keyed import key_of
from gateway.api.accounting.routes import accounting_routers
from gateway.api.authority import AnyCaller, Manager, Operator
from gateway.api.marketplace import disputes, sellers
from gateway.api.marketplace import routes as marketplace
from gateway.api.marketplace.relay import relay_router

_HEAD = """# Every route

`python -m gateway.api.reference` generates this page from the routes of the gateway, and a test compares it. How
to use the routes under `/v1`, and every error: [apps.md](apps.md). Money in detail:
[operations.md](operations.md#accounting-api).

**Who may call.**

- *Anyone*: no key is needed.
- *Any key*: a valid key as `Authorization: Bearer mr-...`, under `/v1` also as `x-api-key`. It gives access to
  the data of its own user.
- *Admins*: users with this role and a key made with `--admin`, for their own organization.
- *Operators*: admins of the organization `home`, and the machine's own command line. Both have all the rights
  above.
- *Seller's session*: a token that a seller's agent gets by its signature.

**Takes.** The query is shown after `?`, the fields of a JSON body in braces. A `*` marks what is required. Where
the column says *Idempotency-Key*, this header is required.
"""

ANYONE, KEY, ADMINS, OPERATORS = "anyone", "any key", "admins", "operators"
_SESSION, _STRIPE, _LANE = "seller's session", "Stripe, by its signature", "a key with the lane `market`"
_WHO = {
    get_args(alias)[1].dependency: who
    for alias, who in ((Operator, OPERATORS), (Manager, ADMINS), (AnyCaller, KEY))
}
_RANKS = (OPERATORS, ADMINS, KEY)

_GROUPS = (
    (
        "Monitoring",
        "for balancers and Prometheus; block them at a public proxy",
        ("/healthz", "/readyz", "/metrics"),
    ),
    ("OpenAI, Anthropic, ranking", "for apps", ("/v1/", "/v2/", "/rerank")),
    ("Ollama", "for Ollama's clients", ("/api/",)),
    ("Accounting", "money and usage, as decimal strings in USD", ("/accounting/",)),
    ("Administration", "the same functions as in the command line and the console", ("/admin/",)),
    ("Market", "at a marketplace; the protocol is in [market.md](market.md)", ("/market/",)),
)


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """A row of the documentation. `takes` is Markdown."""

    method: str
    path: str
    who: str
    does: str
    takes: str = ""


# The callers of routes without a dependency that shows them.
_WHO_OF_PATH = {
    "/api/version": ANYONE,
    "/accounting/v1/webhooks/stripe": _STRIPE,
    "/accounting/v1/webhooks/stripe-connect": _STRIPE,
    "/market/v1/allocations": _LANE,
    "/market/v1/jobs/poll": _SESSION,
    "/market/v1/jobs/{job_id}/answer": _SESSION,
}
# Bodies of handlers that read them directly.
_TAKEN = {
    "POST /v1/files": "a form: `file`\\*, `purpose`\\*, `expires_after[anchor]`, `expires_after[seconds]`",
    "POST /v1/batches": (
        "`{input_file_id*, endpoint*, completion_window*, metadata, output_expires_after}`; the window is `24h`"
    ),
    "POST /v1/messages/count_tokens": "as in Anthropic's API",
    "POST /v1/responses/input_tokens": "as in OpenAI's API",
    "POST /api/show": "as in Ollama's API",
    "POST /market/v1/jobs/{job_id}/answer": "a part of the answer, in MessagePack",
    "POST /market/v1/relay/{seller}/{path}": "the request to the seller",
}
_OPENAI, _ANTHROPIC, _OLLAMA = "as in OpenAI's API", "as in Anthropic's API", "as in Ollama's API"
_OPENAIS_FORM, _RANKING, _PACKED = "OpenAI's form", "as in the APIs of Jina and Cohere", "MessagePack"
# Routes outside of the framework, by method, callers and path.
_WRITTEN: dict[tuple[str, str], dict[str, tuple[str, str]]] = {
    ("GET", ANYONE): {
        "/healthz": ("Check that the process runs.", ""),
        "/readyz": ("Check that the configured models can answer; otherwise 503 with the reason.", ""),
        "/metrics": ("Return metrics for Prometheus.", ""),
    },
    ("GET", KEY): {
        "/v1/models": ("List the models that the key may use, with lanes, features and context.", ""),
        "/v1/models/{name}": ("Show one model that the key may use.", ""),
    },
    ("POST", KEY): {
        "/v1/chat/completions": ("Answer a chat, whole or streamed.", _OPENAI),
        "/v1/completions": ("Continue a text.", _OPENAI),
        "/v1/embeddings": ("Embed texts as vectors.", _OPENAI),
        "/v1/moderations": ("Check whether a text is harmful.", _OPENAI),
        "/v1/images/generations": ("Generate an image.", _OPENAI),
        "/v1/images/edits": ("Edit an image.", _OPENAIS_FORM),
        "/v1/images/variations": ("Generate a variation of an image.", _OPENAIS_FORM),
        "/v1/audio/speech": ("Convert text to speech.", _OPENAI),
        "/v1/audio/transcriptions": ("Transcribe audio.", _OPENAIS_FORM),
        "/v1/audio/translations": ("Translate audio into English text.", _OPENAIS_FORM),
        "/v1/responses": ("Answer with items, stored by default.", _OPENAI),
        "/v1/messages": ("Answer a chat of Anthropic's clients, whole or streamed.", _ANTHROPIC),
        "/v1/rerank": ("Rank documents by relevance to a query.", _RANKING),
        "/v2/rerank": ("Rank documents, for Cohere's newer clients.", _RANKING),
        "/rerank": ("Rank documents, for clients without a version in the path.", _RANKING),
        "/api/chat": ("Answer a chat; without messages load or unload the model.", _OLLAMA),
        "/api/generate": ("Continue a text; without a prompt load or unload the model.", _OLLAMA),
        "/api/embed": ("Embed texts as vectors.", _OLLAMA),
        "/api/embeddings": ("Embed one text as a vector.", _OLLAMA),
    },
    ("POST", ANYONE): {
        "/market/v1/gossip/digest": ("Compare which signed records each side has.", _PACKED),
        "/market/v1/gossip/records": ("Send signed records.", _PACKED),
    },
}


def entries() -> list[RouteEntry]:
    """Return every route of a gateway with payments and a marketplace, by path and method."""
    written = [
        RouteEntry(method, path, who, *fields)
        for (method, who), routes in _WRITTEN.items()
        for path, fields in routes.items()
    ]
    return sorted((*written, *_described()), key=lambda entry: (entry.path, entry.method))


def _described() -> Iterator[RouteEntry]:
    """Yield the routes that FastAPI describes."""
    app = FastAPI()
    for router in _routers():
        app.include_router(router)
    described: dict[str, Any] = app.openapi()
    callers = _callers(app)
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            call = f"{method.upper()} {path}"
            who, is_keyed = callers[call]
            takes = (_TAKEN.get(call) or _taken(operation, described), "*Idempotency-Key*" if is_keyed else "")
            does = _sentence(operation.get("description", ""))
            yield RouteEntry(method.upper(), path, who, does, "; ".join(filter(None, takes)))


def page(found: Iterable[RouteEntry]) -> str:
    """Return Markdown with a table for each group."""
    listed = list(found)
    parts = [_HEAD]
    for title, what, prefixes in _GROUPS:
        rows = [entry for entry in listed if entry.path.startswith(prefixes)]
        parts.append(f"## {title}\n\n{what[0].upper()}{what[1:]}.\n")
        parts.append("| call | who | does | takes |\n|---|---|---|---|")
        parts += [f"| `{row.method} {row.path}` | {row.who} | {row.does} | {row.takes} |" for row in rows]
        parts.append("")
    return "\n".join(parts)


def _routers() -> list[APIRouter]:
    """Return every router. The routes are only described, so some constructor arguments are not needed."""
    nothing: Any = None
    return [
        *(module.router for module in (responses, messages, ollama, files, batches)),
        *(module.router for module in (admin, advice, deployments, routes_admin)),
        *(module.router for module in (preemptible, pool_api, ledger)),
        *accounting_routers(has_payments=True),
        *(
            sellers.keyed,
            sellers.plain,
            marketplace.keyed,
            marketplace.plain,
            disputes.router,
            relay_router(nothing),
        ),
    ]


def _callers(app: FastAPI) -> dict[str, tuple[str, bool]]:
    """Return, by method and path, who may call, and whether it takes an Idempotency-Key."""
    found = {}
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route, "dependant", None)
        if dependant is None or route.path_format is None:
            continue
        dependencies = set(_dependencies(dependant))
        ranks = [who for who in _RANKS if who in {_WHO.get(each) for each in dependencies}]
        otherwise = ANYONE if route.path_format.startswith("/market/") else KEY
        who = _WHO_OF_PATH.get(route.path_format) or next(iter(ranks), otherwise)
        for method in route.methods or ():
            found[f"{method} {route.path_format}"] = who, key_of in dependencies
    return found


def _dependencies(dependant: Dependant) -> Iterator[Any]:
    for each in dependant.dependencies:
        yield each.call
        yield from _dependencies(each)


def _taken(operation: dict[str, Any], described: dict[str, Any]) -> str:
    query = [
        _name(each["name"], each.get("required", False))
        for each in operation.get("parameters", ())
        if each["in"] == "query"
    ]
    fields = list(_fields(operation, described))
    return ", ".join(
        filter(None, (f"`?{'&'.join(query)}`" if query else "", f"`{{{', '.join(fields)}}}`" if fields else ""))
    )


def _fields(operation: dict[str, Any], described: dict[str, Any]) -> Iterator[str]:
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        while "$ref" in schema:
            schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        for name in schema.get("properties", ()):
            yield _name(name, name in schema.get("required", ()))


def _name(name: str, is_required: bool) -> str:
    return f"{name}*" if is_required else name


def _sentence(description: str) -> str:
    """Return the first paragraph as a table's cell."""
    return " ".join(description.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page(entries()))
