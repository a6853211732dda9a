"""Coding agents from npm, as they are: a scripted model has each write a file. `make clients-agents` gets them.

Each has a home of its own and no way out of this machine: what is not for the gateway is refused at once.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_snippets import ROOT, blocks
from tests.fakes.coding_model import CONTENT, DONE, MODEL, coding_model
from tests.fakes.provider_server import ProviderServer
from tests.gateways import Gateway, running_gateway

FOLDER = Path(__file__).parent / "agents"
PACKAGES = FOLDER / "node_modules"
NODE = shutil.which("node") or ""
# Codex sends other tools for models that it knows: one for patches, or a single one that runs code.
CODEX_KNOWS = {"patches": "gpt-5.5", "code": "gpt-5.6-sol"}
PATIENCE_S = 170


Prepared = tuple[list[str], dict[str, str]]


def setting(language: str, gateway: Gateway, model: str = MODEL) -> str:
    """What docs/apps.md shows, with what readers put in the place of placeholders."""
    text = next(text for text in blocks("docs/apps.md", language) if "http://HOST:8400" in text)
    return text.replace("http://HOST:8400", gateway.root).replace("MODEL", model)


def codex(gateway: Gateway, home: Path, model: str = MODEL) -> Prepared:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(setting("toml", gateway, model))
    flags = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"]
    return [NODE, str(PACKAGES / "@openai/codex/bin/codex.js"), "exec", *flags], {}


def claude(gateway: Gateway, home: Path) -> Prepared:
    variables = {
        "ANTHROPIC_BASE_URL": gateway.root,
        "ANTHROPIC_AUTH_TOKEN": gateway.api_key,
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "131072",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return [
        NODE,
        str(PACKAGES / "@anthropic-ai/claude-code/cli-wrapper.cjs"),
        "--allowedTools=Write",
        "-p",
    ], variables


def opencode(gateway: Gateway, home: Path) -> Prepared:
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_text(setting("json", gateway))
    program = next(PACKAGES.glob("opencode-*/bin/opencode"))
    variables = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return [str(program), "run", "--model", f"millrace/{MODEL}"], variables


def qwen(gateway: Gateway, home: Path) -> Prepared:
    variables = {"OPENAI_BASE_URL": gateway.base_url, "OPENAI_API_KEY": gateway.api_key, "OPENAI_MODEL": MODEL}
    flags = ["--auth-type=openai", "--yolo", "-p"]
    return [NODE, str(PACKAGES / "@qwen-code/qwen-code/cli-entry.js"), *flags], variables


AGENTS: dict[str, Callable[[Gateway, Path], Prepared]] = {
    "codex": codex,
    **{f"codex {how}": partial(codex, model=model) for how, model in CODEX_KNOWS.items()},
    "claude": claude,
    "opencode": opencode,
    "qwen": qwen,
}


@pytest.fixture(scope="module")
def backend() -> Iterator[ProviderServer]:
    with coding_model() as backend:
        yield backend


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, backend: ProviderServer) -> Iterator[Gateway]:
    settings = {
        "POOL__BACKENDS": json.dumps([{"name": "desk", "kind": "openai", "base_url": f"{backend.origin}/v1"}]),
        "POOL__ALIASES": json.dumps({name: [MODEL] for name in CODEX_KNOWS.values()}),
    }
    with running_gateway(tmp_path_factory.mktemp("agents"), model=None, settings=settings) as gateway:
        yield gateway


@pytest.mark.skipif(not NODE or not PACKAGES.is_dir(), reason="make clients-agents has not run")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("agent", AGENTS)
def test_a_coding_agent_writes_a_file(
    agent: str, gateway: Gateway, backend: ProviderServer, tmp_path: Path
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    words, variables = AGENTS[agent](gateway, home)
    backend.requests.clear()
    done = subprocess.run(
        [*words, f"Write a sentence about a mill into the file {work}/mill.txt."],
        cwd=work,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TMPDIR": str(tmp_path),
            "LANG": "C.UTF-8",
            "MILLRACE_KEY": gateway.api_key,
            "NO_PROXY": "127.0.0.1",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"),
            **variables,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (work / "mill.txt").read_text().strip() == CONTENT
    assert DONE in done.stdout
    # The agent has run every tool that the model called, also one of a group, and those it was told of.
    results = [message["content"] for message in last_messages(backend) if message["role"] == "tool"]
    assert results
    assert not [
        result for result in results if "unsupported call" in result or "Tool references removed" in result
    ]
    assert {row["status"] for row in gateway.admin("/admin/requests")} == {200}


def last_messages(backend: ProviderServer) -> list[dict[str, Any]]:
    """Of the longest conversation: agents also ask for titles and the like."""
    conversations: list[list[dict[str, Any]]] = [received.body["messages"] for received in backend.requests]
    return max(conversations, key=len)


def test_the_page_has_the_versions_that_are_tried() -> None:
    page = (ROOT / "docs" / "apps.md").read_text()
    for name, version in json.loads((FOLDER / "package.json").read_text())["dependencies"].items():
        assert f"`{name}` {version} |" in page
