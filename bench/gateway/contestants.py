"""Prepare the contestants, all with one upstream.

They are Millrace with everything on, nginx, SGLang's router and LiteLLM.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from bench.gateway.upstream import MODEL

Name = Literal["direct", "millrace", "nginx", "sglang", "litellm"]
NAMES: tuple[Name, ...] = get_args(Name)

# Limits that are checked on every request, but never reached here.
_LIMITS = (
    ("requests", "90000000", "minute"),
    ("tokens", "900000000000", "day"),
    ("concurrency", "100000", None),
    ("spend", "1000000", "month"),
)
_KEY = "sk-bench-0123456789abcdef"
_SETUP_S = 120.0
_FAILURE_CHARS = 500


class NotHere(Exception):
    """Raised if a contestant cannot run on this machine. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a contestant runs: its upstream, its port, and its own folder."""

    upstream_port: int
    port: int
    folder: Path
    programs: Path

    @property
    def upstream(self) -> str:
        return f"http://127.0.0.1:{self.upstream_port}"


@dataclass(frozen=True, slots=True)
class Contestant:
    """How a contestant starts.

    No command means the upstream itself. If `is_slow`, it skips what would take minutes.
    """

    base_url: str
    command: tuple[str, ...] = ()
    key: str = _KEY
    environment: dict[str, str] = field(default_factory=dict)
    is_slow: bool = False


def prepare(name: Name, ground: Ground) -> Contestant:
    """Write what it needs to its folder. Raises NotHere."""
    ground.folder.mkdir(parents=True, exist_ok=True)
    return _PREPARERS[name](ground)


def _direct(ground: Ground) -> Contestant:
    return Contestant(f"{ground.upstream}/v1")


def _millrace(ground: Ground) -> Contestant:
    """Prepare key check, limits of all four kinds, routing, metering, ledger and request log, as by default."""
    environment = {
        "MILLRACE_DATA_DIR": str(ground.folder / "data"),
        "MILLRACE_POOL__BACKENDS": json.dumps(
            [{"name": "upstream", "base_url": f"{ground.upstream}/v1", "models": [MODEL], "slots": 1024}]
        ),
        "MILLRACE_SERVER__REQUESTS_MAX": "1024",
        "MILLRACE_LOG__LEVEL": "warning",
    }
    millrace = str(Path(sys.executable).with_name("millrace"))
    key = json.loads(_setup([millrace, "key", "create", "bench", "--json"], environment))
    for measure, amount, span in _LIMITS:
        per = ["--per", span] if span else []
        _setup([millrace, "key", "limit", key["key_id"], measure, amount, *per], environment)
    return Contestant(
        base_url=f"http://127.0.0.1:{ground.port}/v1",
        command=(millrace, "up", "--nodes", "0", "--host", "127.0.0.1", "--port", str(ground.port)),
        key=key["api_key"],
        environment=environment,
    )


def _nginx(ground: Ground) -> Contestant:
    """Prepare nginx, which only passes bytes on: no keys, no limits, no log."""
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if nginx is None:
        raise NotHere("nginx is not installed")
    kept = ground.folder
    temporary = "".join(
        f"  {kind}_temp_path {kept}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = kept / "nginx.conf"
    configuration.write_text(
        f"worker_processes 1;\ndaemon off;\npid {kept}/pid;\nerror_log {kept}/errors warn;\n"
        "events { worker_connections 4096; }\n"
        "http {\n  access_log off;\n  keepalive_requests 100000000;\n" + temporary + "  upstream mock {\n"
        f"    server 127.0.0.1:{ground.upstream_port};\n"
        "    keepalive 1024;\n    keepalive_requests 100000000;\n  }\n"
        f"  server {{\n    listen 127.0.0.1:{ground.port} backlog=4096;\n    client_body_buffer_size 64k;\n"
        "    location / {\n      proxy_pass http://mock;\n      proxy_http_version 1.1;\n"
        '      proxy_set_header Connection "";\n      proxy_buffering off;\n    }\n  }\n}\n'
    )
    command = (nginx, "-e", str(kept / "errors"), "-c", str(configuration))
    return Contestant(f"http://127.0.0.1:{ground.port}/v1", command)


def _sglang(ground: Ground) -> Contestant:
    """Prepare SGLang's Rust router with its cheapest policy. It checks no keys."""
    router = _program(ground, "sglang", "sglang-router")
    words = f"launch --host 127.0.0.1 --port {ground.port} --worker-urls {ground.upstream} --policy round_robin"
    quiet = f"--log-level error --prometheus-port {ground.port + 1}"
    return Contestant(f"http://127.0.0.1:{ground.port}/v1", (router, *words.split(), *quiet.split()))


def _litellm(ground: Ground) -> Contestant:
    """Prepare LiteLLM's proxy with the master key as the only key, one worker, and no stored data."""
    proxy = _program(ground, "litellm", "litellm")
    configuration = ground.folder / "litellm.yaml"
    route = {"model": f"openai/{MODEL}", "api_base": f"{ground.upstream}/v1", "api_key": "none"}
    settings = {  # JSON is valid YAML.
        "model_list": [{"model_name": MODEL, "litellm_params": route}],
        "litellm_settings": {"telemetry": False},
        "general_settings": {"master_key": _KEY},
    }
    configuration.write_text(json.dumps(settings))
    words = f"--host 127.0.0.1 --port {ground.port} --num_workers 1 --config {configuration}"
    # Without this it would fetch prices from the network.
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
    base_url = f"http://127.0.0.1:{ground.port}/v1"
    return Contestant(base_url, (proxy, *words.split()), environment=environment, is_slow=True)


_PREPARERS: dict[Name, Callable[[Ground], Contestant]] = {
    "direct": _direct,
    "millrace": _millrace,
    "nginx": _nginx,
    "sglang": _sglang,
    "litellm": _litellm,
}


def _program(ground: Ground, environment: str, name: str) -> str:
    path = ground.programs / environment / "bin" / name
    if not path.exists():
        raise NotHere(f"{path} does not exist; run `make bench-gateway` to install it")
    return str(path)


def _setup(command: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=_SETUP_S, check=False
    )
    if done.returncode:
        raise NotHere(f"{' '.join(command)} failed: {done.stderr[-_FAILURE_CHARS:]}")
    return done.stdout
