"""Run by test_network in a network namespace of its own: a worker at work where only loopback exists.

The kernel counts every attempt to reach an address without a route; the worker must not add to that count.
"""

import json
import socket
import subprocess
import tempfile
from pathlib import Path

from gateway.lanes.cloud.worker.providers import CloudConfiguration, CloudModel
from tests.fakes import anthropic_provider, openai_provider
from tests.gateway.lanes.cloud.running import running_worker


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with (
        openai_provider.openai_provider() as openai,
        anthropic_provider.anthropic_provider() as anthropic,
        tempfile.TemporaryDirectory() as folder,
    ):
        keys = Path(folder) / "keys"
        keys.write_text(f"O={openai_provider.KEY}\nA={anthropic_provider.KEY}\n")
        keys.chmod(0o600)
        models = {
            "gpt": CloudModel("openai/fake", openai.origin + "/v1", "O"),
            "gpt.no-usage": CloudModel("openai/fake.no-usage", openai.origin + "/v1", "O"),
            "claude": CloudModel("anthropic/fake", anthropic.origin, "A"),
        }
        before = attempts_without_route()
        with running_worker(CloudConfiguration(models, str(keys))) as worker:
            image = {"type": "image_url", "image_url": {"url": "http://192.0.2.7/picture.png", "detail": "high"}}
            asked = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]
            statuses = [
                worker.chat(model, stream=stream).status_code for model in models for stream in (True, False)
            ]
            statuses.append(worker.chat("gpt.no-usage", messages=asked).status_code)
        by_worker = attempts_without_route() - before
        reach_out()
        by_us = attempts_without_route() - before - by_worker
    print(json.dumps({"statuses": statuses, "by_worker": by_worker, "by_us": by_us}))  # noqa: T201


def attempts_without_route() -> int:
    """Ip: OutNoRoutes of /proc/net/snmp, and its sibling for IPv6."""
    names, values = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines()[:2]]
    version_6 = dict(line.split() for line in Path("/proc/net/snmp6").read_text().splitlines())
    return int(values[names.index("OutNoRoutes")]) + int(version_6["Ip6OutNoRoutes"])


def reach_out() -> None:
    """The control: one attempt of our own, which must be counted."""
    with socket.socket() as attempt:
        assert attempt.connect_ex(("192.0.2.1", 80)) != 0


if __name__ == "__main__":
    main()
