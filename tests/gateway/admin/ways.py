"""The three ways to an operation: a route, a form of the console, and a command; and what came of each.

Each way has a gateway and data of its own. An `Operation` says how each way sends the same fields; `Ways.compare` runs
it on all three and asserts that they agree. What was done is what the audit log has of it. A text may refer to the n-th
key of the example as `<key n>`, to the machine that has joined by its id as `<machine>` and by its name as
`<machine name>`, and `%` becomes a number that no other example has.
"""

import asyncio
import html
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import strategies as st
from typer.testing import CliRunner

from cluster.control.specs import DeploymentSpec
from cluster.joining.enrolment import join
from cluster.trust.addresses import Target
from cluster.trust.identity import NodeId
from gateway.app import create_app, open_services
from gateway.cli.main import app
from gateway.cli.output import FAILED, REFUSED, WRONG_USAGE
from gateway.console.forms import _SENTENCES
from gateway.identity.audit import Filter
from gateway.lanes.pool.lane import PoolLane
from gateway.settings import CloudModel, CloudSettings, Settings
from runtime.data_folder import DataFolder
from tests.clusters import DEMO_MODEL
from tests.console.browsing import Visit
from tests.databases import prepared
from tests.gateway.api.conftest import ROOT, Served

Fields = dict[str, Any]
Strategy = st.SearchStrategy[Any]

MODEL = "org/coder"
_ANY = None
"""A reason in words of the way's own, such as Typer's for a wrong choice; the field must be the same."""
FAST = CloudModel(model="openai/m", prompt_usd_per_mtok="1.00", completion_usd_per_mtok="2.00")
_COLUMN = re.compile(r"(?:^|_)(?:created|since|revoked|removed|expires|previous_until)_ns$")


@dataclass(frozen=True)
class Operation:
    """How each way sends some fields; None if a way has no such operation.

    `request` returns method, path and body; `form` path and fields; `command` words. `names` gives the service layer's
    names of fields that an option or a form calls otherwise. Routes and commands answer the same, unless
    `answers_differ`.
    """

    name: str
    fields: Strategy
    request: Callable[[Fields], tuple[str, str, Fields | None]]
    form: Callable[[Fields], tuple[str, Fields]] | None = None
    command: Callable[[Fields], list[str]] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    answers_differ: bool = False


@dataclass(frozen=True)
class Refusal:
    field: str | None
    reason: str | None

    def agrees(self, other: "Refusal") -> bool:
        """Whether the field or the words are the same. A page without its object says that, whatever else is wrong."""
        if self.field and other.field:
            return self.field == other.field and (
                _ANY in (self.reason, other.reason) or self.reason == other.reason
            )
        return self.reason == other.reason or self.is_missing or other.is_missing

    @property
    def is_missing(self) -> bool:
        return bool(self.reason and re.search(r"not found|no (active )?key has", self.reason))


@dataclass(frozen=True)
class Outcome:
    """The entries of the audit log, and a refusal or an answer; `answer` is None if the way shows a page."""

    entries: tuple[str, ...]
    refusal: Refusal | None = None
    answer: Any = None


@dataclass
class Way:
    """A gateway in process, and one way to it."""

    served: Served
    portal: BlockingPortal
    folder: Path
    keys: list[str] = field(default_factory=list)
    """Ids of the example's keys, oldest first."""
    machines: list[NodeId] = field(default_factory=list)
    """Ids of machines that have joined, the newest last."""
    port: int = 0

    def need_machine(self) -> None:
        """Let a machine join as any does, if the last one was removed."""
        controller = self.served.services.controller
        self.port = self.port or self.portal.call(controller.start, "127.0.0.1", 0)
        if {each.node_id for each in controller.machines() if not each.record.removed_s} & {*self.machines[-1:]}:
            return
        name = f"laptop {len(self.machines)}"
        self.portal.call(join, Target("127.0.0.1", self.port), controller.new_token(), self.folder / name, name)
        self.machines.append(controller.machine(name))

    def run(self, operation: Operation, fields: Fields, *, by_route: bool = False) -> Outcome:
        """Run the operation; if this way has none, by the route, and without an answer to compare."""
        audit = self.served.services.directory.audit
        newest = audit.entries(Filter(), limit=1)
        machine = self.machines[-1]
        names = {f"<key {at}>": key for at, key in enumerate(self.keys)} | {
            "<machine>": machine,
            "<machine name>": self.served.services.controller.name_of(machine),
        }
        referred = _replaced(fields, names)
        refusal, answer = Way.send(self, operation, referred) if by_route else self.send(operation, referred)
        entries = audit.entries(Filter(), limit=50)
        new = [each for each in reversed(entries) if not newest or each.seq > newest[0].seq]
        self.keys += [each.after["key_id"] for each in new if each.action == "key.create" and each.after]
        shown = [
            {name: asdict(each)[name] for name in ("action", "target", "organization_id", "before", "after")}
            for each in new
        ]
        return Outcome(tuple(map(self._plain, shown)), self._named(refusal), answer and self._plain(answer))

    def send(self, operation: Operation, fields: Fields) -> tuple[Refusal | None, Any]:
        method, path, body = operation.request(fields)
        headers = {"idempotency-key": uuid.uuid4().hex}
        answer = self.call(self.served.machine.request, method, path, json=body, headers=headers)
        if answer.status_code == 200:
            return None, answer.json()
        return _of_error(answer), None

    def call(self, send: Callable[..., Any], *words: Any, **more: Any) -> httpx.Response:
        answer: httpx.Response = self.portal.call(partial(send, *words, **more))
        assert answer.status_code < 500, answer.text
        return answer

    def _named(self, refusal: Refusal | None) -> Refusal | None:
        # Bounds are in units of the way's own.
        return refusal and Refusal(
            refusal.field, refusal.reason and re.sub(r"\d+", "#", self._plain(refusal.reason))
        )

    def _plain(self, value: Any) -> str:
        """A value as text, without what differs in each gateway: who did it, secrets, ids and times.

        Lasting times are in minutes.
        """
        text = json.dumps(_timeless(value), sort_keys=True)
        for at, key in enumerate(self.keys):
            text = text.replace(key, f"<key {at}>")
        for at, machine in enumerate(self.machines):
            text = text.replace(machine, f"<machine {at}>")
        text = re.sub(r'"(certified_until_s|joined_s|removed_s)": [1-9][\d.]*', r'"\1": "<time>"', text)
        text = re.sub(r'"id": "(?:[a-z]+:)?[0-9a-f]{32}"', '"id": "<id>"', text)
        return re.sub(r"mr-[\w-]{7,43}", "<secret>", text)


class FormWay(Way):
    visit: Visit

    def send(self, operation: Operation, fields: Fields) -> tuple[Refusal | None, Any]:
        if operation.form is None:
            return super().send(operation, fields)[0], None
        path, values = operation.form(fields)
        answer = self.call(
            self.visit.post, path, **{name: text for name, text in values.items() if text is not None}
        )
        if answer.status_code < 400:
            return None, None
        if answer.headers["content-type"].startswith("application/json"):
            return _of_error(answer), None
        return _of_page(answer.text, operation), None


class CommandWay(Way):
    def send(self, operation: Operation, fields: Fields) -> tuple[Refusal | None, Any]:
        if operation.command is None:
            return super().send(operation, fields)[0], None
        first, *words = operation.command(fields)
        with mock.patch("httpx.request", self._reach):
            said = CliRunner().invoke(app, [*first.split(), "--data-dir", str(self.folder), "--json", *words])
        if said.exit_code == 0:
            # The gateway in this process logs to the same place.
            return None, next(json.loads(line) for line in said.stdout.splitlines() if line[:1] in ("{", "["))
        assert said.exit_code in (FAILED, WRONG_USAGE, REFUSED), said.exception
        return _of_words(said.stderr, operation), None

    def _reach(self, method: str, url: str, *, headers: dict[str, str], json: Any, **_: Any) -> httpx.Response:
        """The gateway in process in place of one that listens."""
        return self.call(self.served.client().request, method, url, headers=headers, json=json)


@dataclass
class Ways:
    route: Way
    form: FormWay
    command: CommandWay
    example: int = 0

    def begin(self) -> None:
        """Begin an example, which has names and keys of its own. Each cluster has the model MODEL."""
        self.example += 1
        for way in (self.route, self.form, self.command):
            way.keys.clear()
            controller = way.served.services.controller
            if all(state.model != MODEL for state in controller.topology().deployments):
                way.portal.call(controller.run_model, DeploymentSpec(MODEL, str(DEMO_MODEL)))
            way.need_machine()

    def end(self) -> None:
        """Remove the servers: probes use `random`, which hypothesis refuses while it draws the next example."""
        for way in (self.route, self.form, self.command):
            lane = way.served.services.lanes["pool"]
            assert isinstance(lane, PoolLane)
            for backend in [*lane.pool.backends()]:
                way.portal.call(lane.pool.remove, backend.settings.name)

    def prepare(self, operation: Operation, fields: Fields) -> None:
        """Run the operation by the route of each gateway, which takes a quarter of the CPU of `compare`."""
        given = _replaced(fields, {"%": str(self.example)})
        for way in (self.route, self.form, self.command):
            assert way.run(operation, given, by_route=True).refusal is None

    def compare(self, operation: Operation, fields: Fields) -> None:
        """Run the operation on each way, and assert that they did or refused the same."""
        given = _replaced(fields, {"%": str(self.example)})
        route, form, command = (way.run(operation, given) for way in (self.route, self.form, self.command))
        for other in (form, command):
            assert other.entries == route.entries, (operation.name, given, route, other)
            assert (other.refusal is None) == (route.refusal is None), (operation.name, given, route, other)
            if route.refusal and other.refusal:
                assert route.refusal.agrees(other.refusal), (operation.name, given, route.refusal, other.refusal)
        if operation.command and not operation.answers_differ:
            assert command.answer == route.answer, (operation.name, given)


@contextmanager
def three_ways(folder: Path) -> Iterator[Ways]:
    """Start the gateways; an instance admin `root` is signed in to the console of the second."""
    with start_blocking_portal() as portal, ExitStack() as stack:
        ways = []
        for kind in (Way, FormWay, CommandWay):
            served = stack.enter_context(portal.wrap_async_context_manager(_serving(folder / kind.__name__)))
            served.services.directory.users.add("root", role="admin")
            ways.append(kind(served, portal, folder / kind.__name__))
        route, form, command = ways
        assert isinstance(form, FormWay)
        assert isinstance(command, CommandWay)
        DataFolder(command.folder).write_running(f"{ROOT}/v1", command.served.services.admin_token)
        form.visit = Visit(form.served.client(), "root")
        key = form.served.key_of("root")
        form.call(form.visit.client.post, "/console/login", data={"key": key}, headers={"accept": "text/html"})
        form.call(form.visit.get, "/console/keys")
        yield Ways(route, form, command)


@asynccontextmanager
async def _serving(folder: Path) -> AsyncIterator[Served]:
    settings = Settings(data_dir=folder, cloud=CloudSettings(models={"fast": FAST, "large": FAST}))
    async with open_services(settings, await asyncio.to_thread(prepared, folder)) as services:
        yield Served(services, create_app(services, Target("127.0.0.1", 1)))


def fields_of(good: Mapping[str, Strategy], bad: Mapping[str, Strategy]) -> Strategy:
    """Fields with at most one fault: of several, each way may tell of another first."""

    @st.composite
    def fields(draw: st.DrawFn) -> Fields:
        found = {name: draw(values) for name, values in good.items()}
        name = draw(st.sampled_from((None, None, *bad)))
        return found if name is None else found | {name: draw(bad[name])}

    return fields()


def option(name: str, value: Any) -> list[str]:
    """An option of a command, if it has a value."""
    return [] if value is None else [f"--{name}={value}"]


def without_nothing(fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if value is not None}


def _replaced(value: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for old, new in texts.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, dict):
        return {name: _replaced(each, texts) for name, each in value.items()}
    return [_replaced(each, texts) for each in value] if isinstance(value, list) else value


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _minutes(each) if _COLUMN.search(name) else _timeless(each)
            for name, each in value.items()
            if name != "actor"
        } | (
            {"expires": _minutes(round(datetime.fromisoformat(value["expires"]).timestamp() * 1e9))}
            if isinstance(value.get("expires"), str)
            else {}
        )
    return [_timeless(each) for each in value] if isinstance(value, list | tuple) else value


def _minutes(time_ns: int | None) -> int | None:
    """Minutes from now: gateways do not do the same at the same moment."""
    return None if time_ns is None else round((time_ns - time.time_ns()) / 60e9)


def _refusal(name: str | None, text: str) -> Refusal:
    """A refusal in comparable words: without the field, which pages show apart, and with a small first letter."""
    text = text.removeprefix(f"{name}: ") if name else text
    reason = f"{text[:1].lower()}{text[1:]}".rstrip(". ")
    is_own = text in _SENTENCES.values() or text.startswith("String should")
    return Refusal(name and name.split(".")[0], _ANY if is_own else reason)


def _of_error(answer: httpx.Response) -> Refusal:
    error = answer.json()["error"]
    return _refusal(error["param"], error["message"])


def _of_page(page: str, operation: Operation) -> Refusal:
    """The first message of a page that shows its form again."""
    found = re.search(
        r'<p class="mr-error"(?: id="f-(\w+)-error")?[^>]*>(?:\s*<svg.*?</svg>)?(.*?)</p>', page, re.DOTALL
    )
    if found is None:
        found = re.search(r'(\0)?data-tone="bad">.*?<strong>(.*?)</strong>', page, re.DOTALL)
    assert found, page
    return _refusal(operation.names.get(found[1], found[1]), html.unescape(found[2]).strip())


def _of_words(said: str, operation: Operation) -> Refusal:
    """The message of a command, or Typer's in a box."""
    line = " ".join(re.sub("[│╭╮╰╯─]", " ", said).split())
    if found := re.search(r"error: (?:--([\w-]+)|([A-Z_]+)): (.*)", line):
        name = (found[1] or found[2]).lower().replace("-", "_")
        return _refusal(operation.names.get(name, name), found[3])
    if found := re.search(r"Invalid value for '(?:[^']* )?(?:--)?([\w-]+)'", line) or re.search(
        r"error: --([\w-]+)", line
    ):
        name = found[1].lower().replace("-", "_")
        return Refusal(operation.names.get(name, name), _ANY)
    found = re.search(r"error: (?:([a-z_]+)(?:\.\d+)?: )?(.*)", line)
    assert found, said
    return _refusal(found[1], found[2])
