"""Clients from npm, as they are: OpenAI's own and Vercel's AI SDK. `make clients-npm` installs them."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import Served
from tests.fakes.whole_api import FILLED, MODEL, TEXT

FOLDER = Path(__file__).parent / "npm"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None or not (FOLDER / "node_modules").is_dir(), reason="make clients-npm has not run")
def test_npm_clients_see_what_was_said(served: Served) -> None:
    assert NODE
    gateway = served.gateway
    done = subprocess.run(
        [NODE, str(FOLDER / "clients.mjs")],
        env=os.environ
        | {"BASE_URL": gateway.base_url, "API_KEY": gateway.api_key, "MODEL": MODEL, "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    saw = {line["name"]: line["saw"] for line in map(json.loads, done.stdout.splitlines())}
    told = "It is sunny."
    kinds = ("chat", "responses")
    assert saw == {
        **dict.fromkeys(("openai chat", "openai stream", "openai responses stream"), TEXT),
        "openai error": 404,
        **{f"vercel {kind}{more}": TEXT for kind in kinds for more in ("", " stream")},
        **{f"vercel {kind} object": FILLED for kind in kinds},
        **{f"vercel {kind} tools": told for kind in kinds},
    }, done.stderr
