"""Credits that a killed gateway had put aside are their owner's again within half a minute, not minutes later."""

import json
import signal
from pathlib import Path

from accounting.money import parse_usd
from tests.fakes import openai_provider as provider
from tests.gateways import Gateway, running_gateway, until

PRICE = {"prompt_usd_per_mtok": "3", "completion_usd_per_mtok": "15"}


def held_nano(gateway: Gateway, key: str) -> int:
    found = gateway.http(key).get("/accounting/v1/balance").raise_for_status().json()
    return parse_usd(found["paid"]["held"])


def test_what_a_killed_gateway_had_put_aside_is_free_soon(tmp_path: Path) -> None:
    keys = tmp_path / "cloud.keys"
    keys.write_text(f"GOOD_KEY={provider.KEY}\n")
    keys.chmod(0o600)
    with provider.openai_provider() as cloud:
        slow = {"model": "openai/fake.slow-chunks", "key": "GOOD_KEY", "base_url": f"{cloud.origin}/v1"} | PRICE
        settings = {"CLOUD__MODELS": json.dumps({"slow": slow}), "CLOUD__KEYS_FILE": str(keys)}
        folder = tmp_path / "data"
        with running_gateway(folder, model=None, nodes=0, settings=settings) as gateway:
            gateway.admin("/admin/users", {"user": "ann"})
            wanted = {"name": "ann", "user": "ann", "lanes": ["cloud"]}
            key = str(gateway.admin("/admin/keys", wanted)["api_key"])
            gateway.cli("credit", "add", "1", "--user", "ann")
            asked = {"model": "slow", "messages": [{"role": "user", "content": "Tick"}], "stream": True}
            with gateway.http(key).stream("POST", "/v1/chat/completions", json=asked) as answer:
                assert answer.status_code == 200, answer.read()
                lines = answer.iter_lines()
                assert next(lines)
                assert held_nano(gateway, key) > 0
                gateway.stop(signal.SIGKILL)
        # It asks no provider, and so needs no process for the cloud.
        with running_gateway(folder, model=None, nodes=0) as gateway:
            # The patience is that of every wait here; a lease of three minutes would outlast it.
            until(lambda: held_nano(gateway, key) == 0 or None)
