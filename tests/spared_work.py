"""Work that libraries repeat for each client and each app, and that a test process needs once."""

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import fastapi.routing
import httpx
import structlog
import typer.main
import typer.testing
from sqlalchemy import Engine
from sqlalchemy.engine.default import DefaultDialect

from accounting.ledger import health
from accounting.ledger.scope import Query, Scope, Witness

STATEMENTS_MAX = 5_000
"""All that our code has."""


def spare_cpu() -> None:
    """Let all tests of this process share what libraries and the checks of the ledger prepare."""
    share_commands()
    _share_checks()
    _share_tls_contexts()
    share_routes()
    _share_statements()
    _log_plain_tracebacks()
    leave_writes_to_the_system()


def leave_writes_to_the_system() -> None:
    """Tests kill processes, never the machine: what they write survives without a wait for the disk."""
    os.fsync = os.fstat  # type: ignore[assignment]  # Which also raises OSError if the file is not open.


def share_commands() -> None:
    """Each run builds the app, its command and all options again. Here an app keeps what it has built."""
    if not hasattr(typer.main.get_command, "cache_info"):
        build = functools.cache(typer.main.get_command)
        typer.main.get_command = build
        typer.testing._get_command = build  # type: ignore[attr-defined]


def _share_checks() -> None:
    """Each check of the ledger builds 25 queries: 25 ms of CPU, most of what the check takes with few entries."""
    if not isinstance(health.RULES["equation"].query, _SharedQuery):
        rules = {name: replace(rule, query=_SharedQuery(rule.query)) for name, rule in health.RULES.items()}
        health.RULES = MappingProxyType(rules)


class _SharedQuery:
    """Builds the query of a rule once for all checks of one scope, unless it reads the clock."""

    def __init__(self, build: Callable[[Scope], Query]) -> None:
        self._build = build
        self._build_once = functools.lru_cache(maxsize=8)(self._build_without_clock)
        self._reads_clock = False

    def __call__(self, scope: Scope) -> Query:
        if not self._reads_clock:
            try:
                return self._build_once(scope.since_seq, scope.witness)
            except AttributeError:
                self._reads_clock = True
        return self._build(scope)

    def _build_without_clock(self, since_seq: int, witness: Witness) -> Query:
        scope: Any = SimpleNamespace(since_seq=since_seq, witness=witness)
        return self._build(scope)


def _share_tls_contexts() -> None:
    """Each client of httpx reads all certificate authorities: 50 ms of CPU. Tests make thousands of clients."""
    create = functools.cache(httpx._config.create_ssl_context)
    httpx._config.create_ssl_context = create
    httpx._transports.default.create_ssl_context = create  # type: ignore[attr-defined]


def prepare_routes() -> None:
    """Inspect the routes of a gateway now: 180 ms of CPU in each fork that is asked otherwise.

    Routes of a marketplace and of payments are left to the few gateways that have them.
    """
    from gateway.web import make_web

    web: Any = make_web({}, (), (), body_bytes_max=1)
    for route in web._app.routes:
        route.matches({"type": "http", "method": "GET", "path": "/", "headers": []})


def share_routes() -> None:
    """Each app of FastAPI inspects the parameters of every route: 100 ms of CPU. Our routers are made once.

    Routes reach their app by the request. Only `dependency_overrides` would be an app's own, and no test has any.
    """
    kind = fastapi.routing._EffectiveRouteContext
    prepare = kind.from_api_route
    prepared: dict[tuple[Any, ...], Any] = {}

    def prepare_once(*, original_route: Any, include_context: Any) -> Any:
        path, shown = include_context.path_for(original_route), include_context.include_in_schema
        key = (id(original_route), path, shown, *map(id, include_context.dependencies))
        if key not in prepared:
            alone = replace(include_context, dependency_overrides_provider=None)
            context = prepare(original_route=original_route, include_context=alone)
            # With what the identities belong to, so that nothing else ever gets one of them.
            prepared[key] = context, original_route, include_context.dependencies
        return prepared[key][0]

    kind.from_api_route = prepare_once  # type: ignore[method-assign]


def _log_plain_tracebacks() -> None:
    """If logs are not configured, structlog has rich show every variable: 0.3 to 1 s of CPU for each exception.

    Gateways, agents and sellers configure theirs without rich (`runtime.logs`).
    """
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])


def _share_statements() -> None:
    """Each engine compiles every statement again: a fifth of the CPU of a test that opens a database.

    The cache tells engines apart by their dialect. All engines of one kind of database here have the same.
    """
    caches: dict[type, Any] = {}
    begin = Engine.__init__

    def begin_with_cache(self: Engine, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        cache: Any = caches.setdefault(type(self.dialect), self._compiled_cache)
        cache.capacity = STATEMENTS_MAX
        self._compiled_cache = cache

    Engine.__init__ = begin_with_cache  # type: ignore[method-assign]
    DefaultDialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
    DefaultDialect.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
