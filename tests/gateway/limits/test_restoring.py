"""What the ledger knows of a limit, on both databases."""

import time
from typing import Any

import pytest
from sqlalchemy import insert

from accounting.rules import local
from gateway.identity.tables import api_key_table
from gateway.limits.counters import CounterKey
from gateway.limits.past_use import used_since
from gateway.limits.windows import DAY_S, window
from gateway.quota import Measure
from runtime.database import open_engine, read_sessions
from tests.accounting.ledgers import LedgerService, usage

NOW_S = int(time.time())
ROWS: list[dict[str, Any]] = [
    {"key_id": "k1", "model": "big"},
    {"key_id": "k1", "model": "small"},
    {"key_id": "k2", "model": "small"},
    {"key_id": "k1", "model": "small", "started_ns": (NOW_S - DAY_S) * 10**9},
    {"key_id": "k1", "model": "small", "outcome": "refused", "prompt_tokens": 0, "completion_tokens": 0},
    {"key_id": "k3", "model": "small", "lane": "cache"},
    {"key_id": "k4", "model": "alias", "served_model": "small"},
    {"key_id": "", "model": "small"},
    {"key_id": "", "model": "small", "user_id": "another"},
]


@pytest.mark.parametrize(
    ("scope", "measure", "model", "used"),
    [
        ("key:k1", "requests", None, 2),
        ("key:k1", "tokens", None, 60),
        ("key:k1", "requests", "big", 1),
        ("key:k4", "requests", "small", 1),
        ("key:k4", "requests", "alias", 1),
        ("key:k4", "tokens", "big", 0),
        ("key:k3", "requests", None, 1),
        ("key:k3", "tokens", None, 0),
        ("user:owner", "requests", None, 6),
        ("organization:home", "requests", None, 6),
        ("organization:other", "requests", None, 0),
        ("key:nobody", "tokens", None, 0),
        ("key:k1", "spend", None, 0),
    ],
)
def test_use_is_summed_by_scope_and_model(
    dsn: str, scope: str, measure: Measure, model: str | None, used: int
) -> None:
    engine = open_engine(dsn)
    with engine.begin() as connection:
        connection.execute(insert(api_key_table), [_key(key_id) for key_id in ("k1", "k2", "k3", "k4")])
    with LedgerService(engine) as ledger:
        for number, changes in enumerate(ROWS):
            fields: dict[str, Any] = {
                "user_id": "owner",
                "prompt_tokens": 10,
                "completion_tokens": 20,
                "cached_tokens": 0,
                "started_ns": NOW_S * 10**9,
            }
            ledger.post(local.local_use(usage(f"r{number}", **(fields | changes))))
    read = used_since(read_sessions(engine))
    assert read(CounterKey(scope, measure, "day", model), window("day", NOW_S)[0], None) == used
    engine.dispose()


def _key(key_id: str) -> dict[str, Any]:
    texts = {"name": key_id, "prefix": key_id, "digest": key_id, "department": "home", "lanes": "pool"}
    return {"key_id": key_id, "user_id": "owner", "created_ns": 0, "privacy": "public"} | texts
