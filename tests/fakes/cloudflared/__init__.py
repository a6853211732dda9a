"""A `cloudflared` for tests and the demo: its flags, what it prints, its metrics port, and its ways to go wrong.

What stands for the public name is a reverse proxy on a port of loopback. Everything else is as Cloudflare's
program does it, as far as a seller can tell: the box on stderr, `/quicktunnel`, `/ready`, `/metrics`, buffered
answers to GET, 524 where no byte comes, a bound on requests in flight.
"""

import json
import os
import shlex
import stat
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GOOD_TOKEN = "eyJhIjoiZ29vZCJ9"
VERSION = "2026.8.2"

_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How it behaves from now on: a running one looks at this again before everything it does."""

    failing_starts: int = 0
    """So many starts, of all there are, end with status 1 before anything listens."""
    is_ready: bool = True
    is_hanging: bool = False
    """Its metrics port takes connections and says nothing."""
    is_ending: bool = False
    """It ends by itself with status 1 as soon as it sees this."""
    needs_http2: bool = False
    """Without `--protocol http2` it never gets ready, as behind a firewall that lets no UDP through."""
    ignores_sigterm: bool = False
    public_port: int = 0
    """What stands for its public name; 0: another one at every start."""
    named_service: str = ""
    """Where a named tunnel leads, as its owner has said on Cloudflare's pages."""
    first_byte_s: float = 100.0
    in_flight_max: int = 200


class Installed:
    """One that lies in `folder` under its own name, so that a PATH can lead there."""

    def __init__(self, folder: Path, behaviour: Behaviour | None = None) -> None:
        self._folder = folder
        self.path = folder / "cloudflared"
        folder.mkdir(parents=True, exist_ok=True)
        self.behave(behaviour or Behaviour())
        exports = {"PYTHONPATH": str(_ROOT), "FAKE_CLOUDFLARED": str(folder)}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
        command = f'exec {shlex.quote(sys.executable)} -m tests.fakes.cloudflared "$@"'
        self.path.write_text("\n".join(["#!/bin/sh", *lines, command, ""]))
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    def behave(self, behaviour: Behaviour) -> None:
        fresh = self._folder / "behaviour.new"
        fresh.write_text(json.dumps(asdict(behaviour)))
        fresh.replace(self._folder / "behaviour.json")

    def starts(self) -> list[dict[str, Any]]:
        """What each start was given: `pid`, `arguments`, `environment`, in their order."""
        try:
            lines = (self._folder / "starts.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]


class Orders:
    """The other side of `Installed`: what the program itself reads and writes."""

    def __init__(self) -> None:
        self._folder = Path(os.environ["FAKE_CLOUDFLARED"])

    @property
    def behaviour(self) -> Behaviour:
        return Behaviour(**json.loads((self._folder / "behaviour.json").read_text()))

    def note_start(self) -> int:
        """Write down how we were started; returns how many starts there have been."""
        start = {"pid": os.getpid(), "arguments": sys.argv[1:], "environment": dict(os.environ)}
        path = self._folder / "starts.jsonl"
        with path.open("a") as file:
            file.write(json.dumps(start) + "\n")
        return len(path.read_text().splitlines())
