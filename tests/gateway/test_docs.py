"""Docs cannot lag: every setting, command, metric, error code, header and console page is written down.

Nothing that is gone still is, and what pages point to is there.
"""

import ast
import difflib
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from starlette.routing import Match

from accounting.money import Price, charge
from accounting.rules.earnings import matured
from accounting.rules.market import SellerBill
from gateway.cli.main import app
from gateway.console.navigation import PAGES
from gateway.console.pages import ROUTERS
from gateway.errors import _TABLE
from gateway.metrics.metrics import Metrics
from gateway.routing.policy import RULES
from gateway.settings import variables
from market.marketplace.terms import MarketplaceTerms

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
APPS = (ROOT / "docs" / "apps.md").read_text()
WRITTEN_PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("demo/**/*.md")]

# Where errors are made that apps get. What gateways tell each other is the protocol's (docs/market.md).
_ROOMS = (
    "gateway",
    "cluster",
    "runtime",
    "market/marketplace",
    "market/buyer",
    "market/audits",
)
_PROTOCOL = (
    *("market/network/", "market/seller/", "market/credit_lines/"),
    *("market/buyer/errors.py", "market/buyer/purchase.py"),
)
_MADE = ("Refusal", "LineInvalid", "Row")
# What an identity signs for its marketplace.
_NO_COMMANDS = ("millrace seller",)
_CODE = re.compile(r"[a-z]+(_[a-z]+)*")
# Names of files look like settings.
_FILES = (".checkpoint", ".db", ".dump", ".json", ".key", ".keys", ".md", ".py", ".toml")
_DOTTED = re.compile(r"(?<![\w./:-])([a-z_]+\.[a-z_]+)(?![\w/(])")


def commands(group: Any, prefix: str = "millrace") -> Iterator[tuple[str, str]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command.help or ""


def test_every_setting_is_documented_as_it_is() -> None:
    rows = re.findall(r"^\| `(MILLRACE_\w+)` \| (?:`(.*?)`)? ?\| (.*) \|$", OPERATIONS, re.MULTILINE)
    assert set(rows) == {tuple(variable) for variable in variables()}


def test_every_setting_that_a_page_names_is_one() -> None:
    """As `section.name` in backticks and in prose, as a variable, and in examples of millrace.toml."""
    names = {name.removeprefix("MILLRACE_").lower().replace("__", ".") for name, _, _ in variables()}
    sections = {name.partition(".")[0] for name in names}
    named = {(page.name, name) for page in WRITTEN_PAGES for name in settings_in(page.read_text())}
    assert len(named) > 150
    wrong = {(page, name) for page, name in named if name not in names and is_meant(name, sections)}
    assert wrong == set()


def test_names_of_settings_are_found_wherever_they_stand() -> None:
    told = (
        "The file `selling.token_file`, or seling.tunnel, see [market.md](market.md); MILLRACE_SELLING__PORTT=1."
    )
    assert set(settings_in(told)) == {"selling.token_file", "seling.tunnel", "selling.portt"}
    assert all(is_meant(name, {"selling", "server"}) for name in settings_in(told))
    assert not is_meant("torch.compile", {"selling", "server"})


def is_meant(name: str, sections: Iterable[str]) -> bool:
    """Whether it looks like a setting: a section before the dot, or what is nearly one."""
    return bool(difflib.get_close_matches(name.partition(".")[0], list(sections), 1, 0.85))


def settings_in(text: str) -> Iterator[str]:
    """Whatever looks like one; of nested ones `section.name`."""
    prose = re.sub(r"\]\([^)\s]*\)", "", text)
    for part in re.split(r"`", prose):
        yield from (name for name in _DOTTED.findall(part) if not name.endswith(_FILES))
    for name in re.findall(r"\bMILLRACE_([A-Z_]*[A-Z])(?!_?\w)", text):
        yield name.lower().replace("__", ".")
    for block in re.findall(r"(?:^ {4}.*\n|^ *\n)+", text, re.MULTILINE):
        if re.search(r"^ {4}\[+[a-z_.]+\]+", block, re.MULTILINE):
            for section, values in tomllib.loads(textwrap.dedent(block)).items():
                yield from (f"{section}.{name}" for name in values)


def test_every_command_is_documented_with_an_example() -> None:
    found = dict(commands(typer.main.get_command(app)))
    written = set(re.findall(r"`(millrace [a-z ]+)`", OPERATIONS.split("## More machines")[0]))
    assert written == set(found)
    for name, text in found.items():
        assert f"Example: {name}" in text, name


def test_every_metric_is_documented() -> None:
    instruments = Metrics.create().instruments
    names = {each.name + ("_total" if each.kind == "counter" else "") for each in instruments}
    assert set(re.findall(r"^\| `(millrace_\w+)` \|", OPERATIONS, re.MULTILINE)) == names


def test_every_error_code_is_documented() -> None:
    """`name_*` stands for all that begin so."""
    errors = APPS.partition("\n## Errors\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", errors, re.MULTILINE)
    of_batches = errors.rpartition("\n\nLines of a batch")[2]
    written = {code for text in (*cells, of_batches) for code in re.findall(r"`([a-z_]+\*?)`", text)}
    found = set(error_codes())
    families = tuple(code.removesuffix("*") for code in written if code.endswith("*"))
    assert {code for code in found - written if not code.startswith(families)} == set()
    assert {code for code in written - found if not code.endswith("*")} == set()


def test_error_codes_have_the_status_that_is_written() -> None:
    rows = re.findall(r"^\| (`.*?) \| ([\d, ]+) \|", APPS, re.MULTILINE)
    written = {code: status for codes, status in rows for code in re.findall(r"`([a-z_]+)`", codes)}
    assert len(written) > 80
    for row in _TABLE.values():
        if row.code and not row.code.startswith("invalid"):
            assert str(row.status) in written[row.code], row


def error_codes() -> Iterator[str]:
    """Every code that the sources give to an error."""
    for room in _ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            if not path.relative_to(ROOT).as_posix().startswith(_PROTOCOL):
                yield from codes_in(ast.parse(path.read_text()))
    yield from (f"policy_{rule}" for rule in RULES)


def codes_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (code for word in node.keywords if word.arg == "code" for code in texts(word.value))
            if isinstance(node.func, ast.Name) and node.func.id in _MADE:
                # The second or third, beside status, type and message; the message is a sentence.
                at = 0 if node.func.id == "LineInvalid" else 2 if node.func.id == "Row" else 1
                yield from (code for value in node.args[at : at + 1] for code in texts(value))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(name_of(target) == "code" for target in targets):
                yield from texts(node.value)
            elif any(name_of(target) == "Code" for target in targets):
                yield from (code for each in ast.walk(node.value) for code in texts(each))
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2 and is_status(node.elts[0]):
            yield from texts(node.elts[1])
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            keyed = (value for key, value in pairs if key is not None and set(texts(key)) == {"code"})
            yield from (code for value in keyed for code in texts(value))


def is_status(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and 400 <= node.value < 600


def name_of(node: ast.AST) -> str:
    return str(getattr(node, "id", None) or getattr(node, "attr", ""))


def texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CODE.fullmatch(node.value):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)


def test_every_header_of_an_answer_is_documented() -> None:
    sources = [*(ROOT / "gateway" / "requests").glob("*.py"), ROOT / "gateway" / "limits" / "headers.py"]
    text = "".join(path.read_text() for path in sources)
    found = set(re.findall(r'b"(x-(?:millrace|ratelimit)-[a-z-]*[a-z])', text))
    assert "x-millrace-lane" in found
    carried = APPS.partition("\n## What an answer carries\n")[2].partition("\n## ")[0]
    assert {name for name in found if f"`{name}" not in carried} == {"x-ratelimit-remaining", "x-ratelimit-reset"}
    assert "`-remaining-`, `-reset-`" in carried


def test_every_page_of_the_console_is_documented() -> None:
    sections = dict(re.findall(r"^## (.+?)\n+(.*?)$", (ROOT / "docs" / "console.md").read_text(), re.MULTILINE))
    routes = [route for router in ROUTERS for route in router.routes]
    for page in PAGES:
        asked = {"type": "http", "method": "GET", "path": page.path, "headers": []}
        if any(route.matches(asked)[0] is Match.FULL for route in routes):
            assert f"`{page.path}`" in sections.get(page.title, ""), f"docs/console.md has '## {page.title}'"


def test_what_pages_point_to_is_there() -> None:
    for page in WRITTEN_PAGES:
        for target in links(page.read_text()):
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert found.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in anchors(found.read_text().splitlines()), f"{page.name}: {target}"


def links(text: str) -> list[str]:
    """Relative ones."""
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [each for each in re.findall(r"\]\(([^)\s]+)\)", without_code) if ":" not in each]


def anchors(lines: Iterable[str]) -> set[str]:
    """As GitHub makes them of headings."""
    titles = (line.lstrip("#").strip().lower() for line in lines if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def test_modules_that_the_architecture_names_are_there() -> None:
    for name in ("architecture.md", "cluster.md"):
        paths = set(paths_in((ROOT / "docs" / name).read_text()))
        assert len(paths) > 10
        assert {path for path in paths if not (ROOT / path).exists()} == set(), name


def test_modules_are_found_in_backticks_alone() -> None:
    text = "`gateway/app.py` and `accounting/rules`, not cluster/net, `/v1/models`, `gateway` or `make check`"
    assert paths_in(text) == ["gateway/app.py", "accounting/rules"]


def paths_in(text: str) -> list[str]:
    """Return what is in backticks and looks like a file or folder of the repository."""
    return re.findall(r"`((?:accounting|cluster|gateway|market|runtime|tests|\.ci)/[\w./-]+)`", text)


def test_each_rule_of_the_architecture_is_kept_by_something() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    known = {contract["name"] for contract in contracts}
    rules = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Rules\n")[2].partition("\n## ")[0]
    keepers = re.findall(r"^\| .* \| (`.*) \|$", rules, re.MULTILINE)
    assert 5 < len(keepers) <= 12
    for keeper in keepers:
        named = re.findall(r"`([^`]+)`", keeper)
        assert named
        assert {name for name in named if name not in known and not paths_in(f"`{name}`")} == set()


def test_the_architecture_is_short() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text().split()) <= 1500


def test_every_page_is_in_the_index() -> None:
    listed = set(links((ROOT / "docs" / "README.md").read_text()))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in pages if not any(link.partition("#")[0] == name for link in listed)} == set()


def test_commands_that_pages_show_are_there() -> None:
    """In code, that is: the command, and every option that is given to it."""
    root = typer.main.get_command(app)
    shown = [(page.name, line) for page in WRITTEN_PAGES for line in command_lines(page.read_text())]
    assert len(shown) > 100
    for page, line in shown:
        group, words = root, line.split()[1:]
        while words and hasattr(group, "commands"):
            word = words.pop(0)
            assert word in group.commands, f"{page}: millrace has no {word}: {line}"
            group = group.commands[word]
        options = {
            option for each in getattr(group, "params", ()) for option in (*each.opts, *each.secondary_opts)
        }
        given = {word.split("=")[0] for word in words if word.startswith("--")}
        assert given <= options | {"--help", "--install-completion"}, f"{page}: {line}"


def command_lines(text: str) -> Iterator[str]:
    """`millrace ...` in backticks and in indented blocks, up to a comment or the next command of the line."""
    spans = re.findall(r"`((?:\S*/)?millrace [a-z][^`]*)`", text)
    blocks = re.findall(r"^ {4,}(?:sudo -u millrace )?((?:\S*/)?millrace [a-z].*)$", text, re.MULTILINE)
    for found in (*spans, *blocks):
        line = re.split(r"\s#|[|;&(,]", found)[0].strip()
        if "COMMAND" not in line and line not in _NO_COMMANDS:
            yield line


def test_every_metric_that_admins_are_told_to_watch_is_there() -> None:
    instruments = Metrics.create().instruments
    names = {each.name + ("_total" if each.kind == "counter" else "") for each in instruments}
    watched = set(re.findall(r"\b(millrace_[a-z_]+)", (ROOT / "docs" / "admins.md").read_text()))
    assert watched
    assert watched - names == set()


def test_the_sellers_example_is_what_the_ledger_would_say() -> None:
    text = (ROOT / "docs" / "sellers.md").read_text()
    sold_nano = charge(Price(50_000_000, 0, 200_000_000), 3_000_000, 0, 800_000)
    sale = SellerBill("ann", sold_nano, MarketplaceTerms().fee_bps)
    earned_nano = sold_nano - sale.fee_nano
    legs = matured("ann", "2026-11-22", earned_nano, MarketplaceTerms().reserve_bps).legs
    for amount_nano in (sold_nano, sale.fee_nano, earned_nano, *(leg.amount_nano for leg in legs)):
        assert f"{amount_nano / 10**9:.6f} USD" in text, amount_nano


def test_every_folder_lists_its_modules() -> None:
    found = subprocess.run(
        [sys.executable, ROOT / ".ci" / "folders.py"], capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_no_path_of_a_machine_is_in_the_docs() -> None:
    for page in WRITTEN_PAGES:
        assert "/work/" not in page.read_text(), page
        assert "/root/" not in page.read_text(), page
