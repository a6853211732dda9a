"""What has a route, a form and a command: all three do and refuse the same."""

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.gateway.admin.ways import (
    MODEL,
    Fields,
    Operation,
    Strategy,
    Ways,
    fields_of,
    option,
    three_ways,
    without_nothing,
)

# Forms remove spaces at the ends and do not send empty fields, so optional texts have neither.
IDS = st.sampled_from(("ann%", "bob%", "ann%", "owner"))
NO_IDS = st.sampled_from(("market-jobs", "missing", "b b", "a:b", "x" * 81))
ORGANIZATIONS = st.sampled_from(("home", "lab%", "The lab %"))
NAMES = st.sampled_from(("notebook %", "The lab %", "ünïcode"))
NO_NAMES = st.sampled_from(("", "x" * 101, "x" * 201, "a\u200bb", "tab\tbed"))
LIMITS: Strategy = st.sampled_from(
    (
        {"measure": "requests", "span": "minute", "amount": "60"},
        {"measure": "tokens", "span": "month", "amount": "0"},
        {"measure": "concurrency", "span": None, "amount": "5"},
        {"measure": "spend", "span": "day", "amount": "5.00"},
        {"measure": "spend", "span": "month", "amount": "1"},
    )
)
SCOPES = st.sampled_from(("user:ann%", "user:root", "key:<key 0>", "team:lab%/vision", "organization:lab%"))
NO_SCOPES = st.sampled_from(("team:lab%", "user:no%", "moon:x", "key:none", "x" * 201))
MODELS = st.sampled_from((None, "llama-3"))
KEYS = st.sampled_from(("<key 0>", "<key 0>", "<key 1>"))
TERMS: dict[str, Strategy] = {
    "lanes": st.lists(st.sampled_from(("cluster", "pool", "cloud", "market")), min_size=1, unique=True),
    "models": st.none() | st.lists(st.sampled_from(("a", "llama-3")), min_size=1, unique=True),
    "regions": st.none() | st.lists(st.sampled_from(("eu", "us-1")), min_size=1, unique=True),
    "privacy": st.sampled_from(("public", "internal", "private")),
    "priority": st.sampled_from((0, 10, 100)),
    "may_administer": st.booleans(),
    "expires_in_s": st.sampled_from((None, 60, 86_400)),
}
NO_TERMS: dict[str, Strategy] = {
    "lanes": st.just(["cluster", "moon"]),
    "models": st.just(["a", "x" * 201]),
    "regions": st.sampled_from((["e_u"], ["eu", "x" * 33])),
    "privacy": st.just("secret"),
    "priority": st.sampled_from((-1, 101)),
    "expires_in_s": st.sampled_from((0, 4016 * 86_400)),
}


def _body(fields: Fields, *left_out: str) -> Fields:
    return {name: value for name, value in fields.items() if name not in left_out}


def _terms(fields: Fields) -> Fields:
    """A key's terms as the form has them."""
    lists = {name: ", ".join(fields[name] or ()) for name in ("models", "regions")}
    return fields | lists | {"may_administer": "true" if fields["may_administer"] else None}


def _recipient(fields: Fields, organization: str) -> Fields:
    kind, _, name = fields["to"].partition(":")
    return {"user" if kind == "user" else organization: name}


def _ends(days: int) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


def _changed(fields: Fields) -> Fields:
    return _body(fields, "key", *(["expires_in_s"] if fields["expires_in_s"] is None else []))


def _create_words(fields: Fields) -> list[str]:
    return [
        "key create",
        *option("user", fields["user"]),
        *(
            word
            for name in ("lanes", "models", "regions")
            if fields[name]
            for word in option(name, ",".join(fields[name]))
        ),
        *option("privacy", fields["privacy"]),
        *option("priority", fields["priority"]),
        *option("expires", None if fields["expires_in_s"] is None else f"{fields['expires_in_s'] // 60}m"),
        *(["--admin"] if fields["may_administer"] else []),
        "--",
        fields["name"],
    ]


def _kind(fields: Fields) -> str:
    return " ".join(filter(None, (fields["measure"], fields["span"])))


def _limit_words(fields: Fields, amount: str) -> list[str]:
    options = option("per", fields["span"]) + option("model", fields["model"])
    return ["key limit", *options, "--", fields["scope"], fields["measure"], amount]


def _limit_form(fields: Fields) -> tuple[str, Fields]:
    path = f"/console/keys/limits/new?scope={quote(fields['scope'])}"
    return path, _body(fields, "measure", "span") | {"kind": _kind(fields)}


def _limit_query(fields: Fields, *left_out: str) -> str:
    return urlencode(without_nothing(_body(fields, *left_out)))


def _budget_words(verb: str, fields: Fields, *amount: str) -> list[str]:
    options = option("per", fields["span"]) + option("model", fields["model"])
    return [f"budget {verb}", *options, "--", fields["scope"], *amount]


def _limit(fields: Fields) -> Fields:
    limit: Fields = fields["limit"]
    return _body(fields, "limit") | limit


def _limits(**good: Strategy) -> Strategy:
    """Fields of a limit, with at most one fault."""
    bad = {
        "scope": NO_SCOPES,
        "measure": st.just("water"),
        "span": st.sampled_from(("year", "minute")),
        "amount": st.sampled_from(("-1", "5e3", "many", "1" * 41, "0.0000000001")),
    }
    return fields_of({"scope": SCOPES, "model": MODELS} | good, {}).flatmap(
        lambda fields: fields_of({name: st.just(value) for name, value in _limit(fields).items()}, bad)
    )


LIMIT = _limits(limit=LIMITS)
BUDGET = _limits(limit=LIMITS.filter(lambda limit: limit["measure"] == "spend")).filter(
    lambda fields: fields["measure"] == "spend"
)
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "add an organization",
        fields_of(
            {"id": st.sampled_from(("lab%", "other%")), "name": st.none() | NAMES},
            {"id": st.sampled_from(("a/b", "", "x" * 81)), "name": NO_NAMES.filter(bool)},
        ),
        lambda f: ("POST", "/admin/organizations", without_nothing(f)),
        lambda f: ("/console/keys/organizations", f),
        lambda f: ["org add", *option("name", f["name"]), "--", f["id"]],
        {"organization": "id"},
    ),
    Operation(
        "add a user",
        fields_of(
            {
                "user": IDS,
                "organization": st.none() | ORGANIZATIONS,
                "name": st.none() | NAMES,
                "email": st.sampled_from((None, "ann@example.org", "x%@example.org")),
                "role": st.sampled_from(("admin", "member", "seller")),
            },
            {
                "user": NO_IDS,
                "organization": st.just("none%"),
                "name": NO_NAMES.filter(bool),
                "email": st.sampled_from(("ann", "x" * 201)),
                "role": st.just("boss"),
            },
        ),
        lambda f: ("POST", "/admin/users", without_nothing(f)),
        lambda f: ("/console/keys/users", f),
        lambda f: [
            "users add",
            *(word for name in ("organization", "name", "email", "role") for word in option(name, f[name])),
            "--",
            f["user"],
        ],
    ),
    Operation(
        "change a role",
        fields_of(
            {"user": IDS, "role": st.sampled_from(("admin", "member", "seller"))},
            {"user": NO_IDS, "role": st.just("boss")},
        ),
        lambda f: ("PATCH", f"/admin/users/{quote(f['user'])}", {"role": f["role"]}),
        lambda f: (f"/console/keys/users/{quote(f['user'])}/role", {"role": f["role"]}),
        lambda f: ["users role", "--", f["user"], f["role"]],
    ),
    Operation(
        "remove a user",
        fields_of({"user": IDS}, {"user": NO_IDS}),
        lambda f: ("DELETE", f"/admin/users/{quote(f['user'])}", None),
        lambda f: (f"/console/keys/users/{quote(f['user'])}/remove", {}),
        lambda f: ["users remove", "--", f["user"]],
    ),
    Operation(
        "create a key",
        fields_of({"name": NAMES, "user": IDS} | TERMS, {"name": NO_NAMES, "user": NO_IDS} | NO_TERMS),
        lambda f: ("POST", "/admin/keys", f),
        lambda f: ("/console/keys/new", _terms(f)),
        _create_words,
        {"expires": "expires_in_s", "admin": "may_administer"},
    ),
    Operation(
        "change a key",
        fields_of({"key": KEYS} | TERMS, {"key": st.just("none")} | NO_TERMS),
        lambda f: ("PATCH", f"/admin/keys/{f['key']}", _changed(f)),
        lambda f: (f"/console/keys/key/{f['key']}/change", _body(_terms(f), "key")),
    ),
    Operation(
        "rotate a key",
        fields_of(
            {"key": KEYS, "hours": st.sampled_from((0, 1, 720))}, {"key": st.just("none"), "hours": st.just(721)}
        ),
        lambda f: ("POST", f"/admin/keys/{f['key']}/rotate", {"grace_s": f["hours"] * 3600}),
        lambda f: (f"/console/keys/key/{f['key']}/rotate", {"grace_hours": str(f["hours"])}),
        lambda f: ["key rotate", f"--grace={f['hours']}{'h' if f['hours'] else ''}", "--", f["key"]],
        {"grace": "grace_s", "grace_hours": "grace_s"},
    ),
    Operation(
        "revoke a key",
        fields_of({"key": KEYS}, {"key": st.just("none")}),
        lambda f: ("DELETE", f"/admin/keys/{f['key']}", None),
        lambda f: (f"/console/keys/key/{f['key']}/revoke", {}),
        lambda f: ["key revoke", "--", f["key"]],
    ),
    Operation(
        "set a limit",
        LIMIT,
        lambda f: ("PUT", "/admin/quotas", f),
        _limit_form,
        lambda f: _limit_words(f, f["amount"]),
        {"per": "span", "target": "scope"},
        answers_differ=True,
    ),
    Operation(
        "remove a limit",
        LIMIT,
        lambda f: ("DELETE", f"/admin/quotas?{_limit_query(f, 'amount')}", None),
        lambda f: ("/console/keys/limits/remove", _body(f, "amount")),
        lambda f: _limit_words(f, "none"),
        {"per": "span", "target": "scope"},
        answers_differ=True,
    ),
    Operation(
        "set a budget",
        BUDGET,
        lambda f: ("PUT", "/accounting/v1/budgets", _body(f, "measure")),
        _limit_form,
        lambda f: _budget_words("set", f, f["amount"]),
        {"per": "span"},
        answers_differ=True,
    ),
    Operation(
        "remove a budget",
        BUDGET,
        lambda f: ("DELETE", f"/accounting/v1/budgets?{_limit_query(f, 'amount', 'measure')}", None),
        lambda f: ("/console/keys/limits/remove", _body(f, "amount")),
        lambda f: _budget_words("remove", f),
        {"per": "span"},
        answers_differ=True,
    ),
)

# Amounts that are none, and reasons that are too long or missing.
NO_CREDIT: dict[str, Strategy] = {
    "amount": st.sampled_from(("0", "-1", "5e3", "many", "2000000")),
    "reason": st.sampled_from(("", "x" * 201)),
}
CREDIT: dict[str, Strategy] = {"amount": st.sampled_from(("5.00", "0.000000001")), "reason": NAMES}
OPERATIONS += (
    Operation(
        "give credits",
        fields_of(
            {"to": st.sampled_from(("user:ann%", "user:root", "organization:lab%"))} | CREDIT,
            {"to": st.sampled_from(("user:missing", "organization:none%"))} | NO_CREDIT,
        ),
        lambda f: ("POST", "/accounting/v1/credits", _body(f, "to") | _recipient(f, "organization")),
        lambda f: ("/console/balance/credits/give", f | {"once": uuid.uuid4().hex}),
        lambda f: [
            "credit add",
            *option("note", f["reason"]),
            *(word for name, value in _recipient(f, "pool").items() for word in option(name, value)),
            "--",
            f["amount"],
        ],
        {"note": "reason", "pool": "organization"},
        answers_differ=True,
    ),
    Operation(
        "give promotional credits",
        fields_of({"user": IDS, "days": st.sampled_from((1, 3650))} | CREDIT, {"user": NO_IDS} | NO_CREDIT),
        lambda f: ("POST", "/accounting/v1/credits/promo", _body(f, "days") | {"expires": _ends(f["days"])}),
        lambda f: ("/console/balance/credits/grant", f | {"days": str(f["days"]), "once": uuid.uuid4().hex}),
        lambda f: [
            "credit grant",
            *option("note", f["reason"]),
            *option("user", f["user"]),
            *option("days", f["days"]),
            "--",
            f["amount"],
        ],
        {"note": "reason", "pool": "organization"},
        answers_differ=True,
    ),
)

ALIASES = st.sampled_from(("mini%", "mini%", "other%"))
MODELS_OF_ALIAS = st.sampled_from((["fast"], ["large", "fast"]))
CLOUD_MODELS = st.sampled_from(("fast", "large"))
PRICES: dict[str, Strategy] = {
    name: st.sampled_from(("0.15", "3")) for name in ("prompt_usd_per_mtok", "completion_usd_per_mtok")
}
NO_PRICES = {name: st.sampled_from(("-1", "many", "5e3")) for name in PRICES}
SERVERS = st.sampled_from(("desk%", "desk%", "shelf%"))


def _change_of_server(name: str, what: str, query: str = "") -> Operation:
    """A button of a pool server; one that was added last may be gone again."""
    return Operation(
        name,
        fields_of({"name": SERVERS}, {"name": st.just("none")}),
        lambda f: ("POST", f"/admin/pool/backends/{f['name']}/{what.removeprefix('un')}{query}", None),
        lambda f: (f"/console/models/servers/{f['name']}/{what}", {}),
        lambda f: [f"pool {what}", "--", f["name"]],
        answers_differ=True,
    )


def _change_of_model(
    what: str, request: Callable[[str], tuple[str, str, Fields | None]], *option: str
) -> Operation:
    """A button of a cluster model. The operation that runs one has no command here: that waits for machines."""
    return Operation(
        f"{what} a model of the cluster",
        fields_of({"model": st.just(MODEL)}, {"model": st.sampled_from(("none", "a b"))}),
        lambda f: request(f["model"]),
        lambda f: (f"/console/models/cluster/{what}", f),
        lambda f: ["stop", *option, "--", f["model"]],
        answers_differ=True,
    )


OPERATIONS += (
    _change_of_model("stop", lambda model: ("POST", "/admin/cluster/models/stop", {"model": model})),
    _change_of_model(
        "remove",
        lambda model: ("DELETE", f"/admin/cluster/models?model={quote(model, safe='')}", None),
        "--remove",
    ),
    Operation(
        "set an alias",
        fields_of(
            {"alias": ALIASES, "models": MODELS_OF_ALIAS},
            {"alias": st.sampled_from(("../up", "x" * 257)), "models": st.sampled_from((["moon"], ["x" * 257]))},
        ),
        lambda f: ("PUT", "/admin/aliases", f),
        lambda f: ("/console/models/alias", f | {"model": "fast", "models": ", ".join(f["models"])}),
        lambda f: ["pool alias", "--", f["alias"], *f["models"]],
    ),
    Operation(
        "remove an alias",
        fields_of({"alias": ALIASES}, {"alias": st.just("none")}),
        lambda f: ("DELETE", f"/admin/aliases?alias={f['alias']}", None),
        lambda f: ("/console/models/alias/remove", f | {"model": "fast"}),
        lambda f: ["pool unalias", "--", f["alias"]],
    ),
    Operation(
        "set a price",
        fields_of({"model": CLOUD_MODELS} | PRICES, {"model": st.just("moon")} | NO_PRICES),
        lambda f: ("PUT", "/admin/prices", f),
        lambda f: ("/console/models/price", f),
        lambda f: [
            "prices set",
            *option("prompt", f["prompt_usd_per_mtok"]),
            *option("completion", f["completion_usd_per_mtok"]),
            "--",
            f["model"],
        ],
        {"prompt": "prompt_usd_per_mtok", "completion": "completion_usd_per_mtok"},
    ),
    Operation(
        "remove a price",
        fields_of({"model": CLOUD_MODELS}, {"model": st.just("moon")}),
        lambda f: ("DELETE", f"/admin/prices?model={f['model']}", None),
        lambda f: ("/console/models/price/remove", f),
        lambda f: ["prices unset", "--", f["model"]],
    ),
    Operation(
        "add a pool server",
        fields_of(
            {
                "name": SERVERS,
                "base_url": st.just("http://127.0.0.1:1/v1"),
                "kind": st.sampled_from(("ollama", "vllm")),
                "region": st.sampled_from((None, "eu")),
            },
            {
                "name": st.sampled_from(("a/b", "x" * 81)),
                "base_url": st.sampled_from(("desk", "ftp://desk", "http://desk/v1?x")),
                "kind": st.just("moon"),
            },
        ),
        lambda f: ("POST", "/admin/pool/backends", without_nothing(f)),
        lambda f: ("/console/models/servers", f),
        lambda f: [
            "pool add",
            *option("kind", f["kind"]),
            *option("region", f["region"]),
            "--",
            f["name"],
            f["base_url"],
        ],
        answers_differ=True,
    ),
    _change_of_server("drain a pool server", "drain"),
    _change_of_server("enable a pool server", "undrain", "?undo=true"),
    _change_of_server("remove a pool server", "remove"),
    Operation(
        "create a join token",
        fields_of({}, {}),
        lambda _: ("POST", "/admin/tokens", None),
        lambda _: ("/console/cluster/add", {}),
        lambda _: ["token create"],
        answers_differ=True,
    ),
)

# The console's addresses have a machine's id; routes and commands take its name, too.
MACHINES: Strategy = st.sampled_from(
    ({"id": "<machine>", "called": "<machine>"}, {"id": "<machine>", "called": "<machine name>"})
)
NO_MACHINES: Strategy = st.just({"id": "none", "called": "none"})


def _change_of_machine(name: str, what: str, query: str = "", *words: str) -> Operation:
    """A button of a machine, whose page has its id."""
    verb = what.removeprefix("un")
    return Operation(
        name,
        fields_of({"machine": MACHINES}, {"machine": NO_MACHINES}),
        lambda f: ("POST", f"/admin/machines/{quote(f['machine']['called'])}/{verb}{query}", None),
        lambda f: (f"/console/cluster/machines/{f['machine']['id']}/{what}", {}),
        lambda f: [f"machines {verb}", *words, "--", f["machine"]["called"]],
    )


OPERATIONS += (
    Operation(
        "list machines",
        fields_of({}, {}),
        lambda _: ("GET", "/admin/machines", None),
        command=lambda _: ["machines list"],
    ),
    _change_of_machine("drain a machine", "drain"),
    _change_of_machine("enable a machine", "undrain", "?undo=true", "--undo"),
    Operation(
        "rename a machine",
        fields_of(
            {"machine": MACHINES, "name": st.sampled_from(("desk %", "Desk %", "ünïcode %"))},
            {"machine": NO_MACHINES, "name": NO_NAMES.filter(bool) | st.sampled_from(("a/b", "-x", ".x"))},
        ),
        lambda f: ("POST", f"/admin/machines/{quote(f['machine']['called'])}/rename", _body(f, "machine")),
        lambda f: (f"/console/cluster/machines/{f['machine']['id']}/rename", _body(f, "machine")),
        lambda f: ["machines rename", "--", f["machine"]["called"], f["name"]],
        {"new_name": "name"},
    ),
    _change_of_machine("remove a machine", "remove"),
)

BEGINNING: tuple[tuple[str, Fields], ...] = (
    ("add an organization", {"id": "lab%", "name": "The lab %"}),
    ("add a user", {"user": "ann%", "organization": "lab%", "name": None, "email": None, "role": "member"}),
    (
        "create a key",
        {"name": "first %", "user": "ann%", "lanes": ["pool"], "models": None, "regions": None}
        | {"privacy": "public", "priority": 0, "may_administer": False, "expires_in_s": None},
    ),
)
STEPS = st.sampled_from(OPERATIONS).flatmap(lambda each: st.tuples(st.just(each.name), each.fields))


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    with three_ways(tmp_path_factory.mktemp("ways")) as ways:
        yield ways


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_what_one_way_does_and_refuses_the_others_do_and_refuse(ways: Ways, operation: Operation) -> None:
    by_name = {each.name: each for each in OPERATIONS}

    # Data stays from one example to the next, so the same fields may do something else: there is nothing to shrink.
    @settings(
        max_examples=examples(2, 40),
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(STEPS, max_size=2), operation.fields)
    def check(steps: list[tuple[str, Fields]], fields: Fields) -> None:
        ways.begin()
        try:
            for name, given_fields in BEGINNING:
                ways.prepare(by_name[name], given_fields)
            for name, given_fields in (*steps, (operation.name, fields)):
                ways.compare(by_name[name], given_fields)
        finally:
            ways.end()

    check()


def test_a_removed_machine_is_refused_by_all(ways: Ways) -> None:
    by_name = {each.name: each for each in OPERATIONS}
    fields = {"machine": {"id": "<machine>", "called": "<machine>"}}
    ways.begin()
    ways.compare(by_name["remove a machine"], fields)
    for name in ("drain a machine", "enable a machine", "remove a machine"):
        ways.compare(by_name[name], fields)
    ways.compare(by_name["rename a machine"], fields | {"name": "desk"})
    ways.compare(by_name["list machines"], {})
