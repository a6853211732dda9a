"""compose.yaml cannot be run here; what it tells the gateways is read as they would read it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from gateway.settings import read_settings

COMPOSE: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
GATEWAYS = ("gateway", "gateway-2")


def interpolated(text: str) -> str:
    """As compose does it, with a value for everything that must be given."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return re.sub(r"\$\{\w+:\?[^}]*\}", "0123456789abcdef" * 2, text)


@pytest.mark.parametrize("name", GATEWAYS)
def test_settings_of_the_gateways_are_settings(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable, value in SERVICES[name]["environment"].items():
        monkeypatch.setenv(variable, interpolated(value))
    settings = read_settings(data_dir=tmp_path)
    assert settings.database.dsn
    assert settings.redis.url
    assert settings.identity.secret
    balancer = SERVICES["balancer"]["networks"]["default"]["ipv4_address"]
    assert [str(network) for network in settings.server.trusted_proxies] == [f"{balancer}/32"]


def test_what_both_must_share_is_the_same() -> None:
    one, two = (SERVICES[name]["environment"] for name in GATEWAYS)
    for variable in ("MILLRACE_DATABASE__DSN", "MILLRACE_REDIS__URL", "MILLRACE_IDENTITY__SECRET"):
        assert one[variable] == two[variable]


def test_services_need_only_what_is_there() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= set(SERVICES)
        for mount in service.get("volumes", ()):
            assert mount.partition(":")[0] in COMPOSE["volumes"]


def test_the_balancer_knows_both_gateways() -> None:
    content = COMPOSE["configs"]["balancer"]["content"]
    assert re.findall(r"server ([\w-]+):8400", content) == list(GATEWAYS)
    assert content.count("{") == content.count("}")
    # What gateways believe of it, it writes itself; nothing of that is the caller's.
    for header in ("X-Forwarded-For $$remote_addr", "X-Forwarded-Proto $$proto", 'Forwarded ""'):
        assert f"proxy_set_header {header};" in content
    assert f"set_real_ip_from {SERVICES['cloudflared']['networks']['edge']['ipv4_address']};" in content
    assert not re.findall(r"(?<!\$)\$(?!\$)", content), "compose would put variables of its own in their place"
