"""What docs and README show runs as it stands there, with the clients as they are."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import Served
from tests.clients.snippet_process import SnippetProcess
from tests.fakes.whole_api import MODEL, TEXT

ROOT = Path(__file__).parents[2]
NPM = Path(__file__).parent / "npm"
NODE = shutil.which("node")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    found = _BLOCK.findall((ROOT / page).read_text())
    return [text for kind, text in found if kind == language]


def imported(snippet: str) -> str:
    """What it is of, for the test's name."""
    names = re.findall(r"^(?:from|import) (\w+)", snippet, re.MULTILINE)
    return str(next(name for name in names if name not in sys.stdlib_module_names))


PYTHON = [*blocks("docs/apps.md", "python"), *blocks("README.md", "python")]
JAVASCRIPT = blocks("docs/apps.md", "js")


def environment_of(served: Served) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "OPENAI_BASE_URL": served.gateway.base_url,
        "OPENAI_API_KEY": served.gateway.api_key,
    }


def filled_in(snippet: str, served: Served) -> str:
    """With what readers put in the place of placeholders."""
    gateway = served.gateway
    given = {
        "MODEL": MODEL,
        'model="model"': f'model="{MODEL}"',
        "http://127.0.0.1:PORT/v1": gateway.base_url,
        '"mr-..."': f'"{gateway.api_key}"',
    }
    for placeholder, value in given.items():
        snippet = snippet.replace(placeholder, value)
    return snippet


@pytest.mark.parametrize("snippet", PYTHON, ids=imported)
def test_snippets_of_python_run(snippet: str, snippets: SnippetProcess, served: Served, tmp_path: Path) -> None:
    code, printed, complained = snippets.run(
        filled_in(snippet, served), environment_of(served), tmp_path, timeout_s=100
    )
    assert code == 0, complained
    assert printed.strip(), "each shows what it is for"
    if ".content)" in snippet or ".text)" in snippet:
        assert TEXT in printed


@pytest.mark.skipif(NODE is None or not (NPM / "node_modules").is_dir(), reason="make clients-npm has not run")
@pytest.mark.parametrize("snippet", JAVASCRIPT)
def test_snippets_of_javascript_run(snippet: str, served: Served) -> None:
    assert NODE
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", filled_in(snippet, served)],
        cwd=NPM,
        env=environment_of(served),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == TEXT


def test_there_are_snippets_of_every_client() -> None:
    """A page whose blocks the expression above no longer finds would pass unread."""
    assert {imported(snippet) for snippet in PYTHON} >= {"openai", "anthropic", "ollama", "httpx", "litellm"}
    assert JAVASCRIPT
