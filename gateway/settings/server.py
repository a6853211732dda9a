"""Settings of the server: addresses, storage and logs."""

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from runtime.settings import Section

# The number of bits of an IPv6 address before an embedded IPv4 address.
_MAPPED_BITS = 96


class ServerSettings(Section):
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(8400, ge=0, le=65535, description="HTTP port; 0 selects a free one.")
    body_bytes_max: int = Field(32 * 2**20, ge=1024, description="Maximum size of a request body, in bytes.")
    requests_max: int = Field(1024, ge=1, description="Maximum number of concurrent requests; more get a 503.")
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = Field(
        (),
        description=(
            "Networks of proxies whose headers for the caller's address and scheme are "
            "trusted (X-Forwarded-For, else Forwarded; X-Forwarded-Proto)."
        ),
        examples=['["127.0.0.1/32", "10.0.0.0/24"]'],
    )
    drain_s: int = Field(30, ge=0, description="How long a stop waits for running requests, in seconds.")

    @field_validator("trusted_proxies")
    @classmethod
    def _names_proxies(
        cls, networks: tuple[IPv4Network | IPv6Network, ...]
    ) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(map(_unmapped, networks))


def _unmapped(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """Return networks in the form for comparison with client addresses.

    Raises ValueError for a network of all addresses.
    """
    inner = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if inner is not None and network.prefixlen >= _MAPPED_BITS:
        network = ip_network((inner, network.prefixlen - _MAPPED_BITS))
    if network.prefixlen == 0:
        raise ValueError(f"{network} would trust every client; name the proxies' own networks")
    return network


class DatabaseSettings(Section):
    dsn: SecretStr | None = Field(
        None, description="PostgreSQL DSN; without one the database is an SQLite file in the data directory."
    )


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest severity that is written."
    )
    format: Literal["json", "console"] = Field("json", description="JSON lines, or colored text.")
    access: Literal["off", "json"] = Field(
        "json", description="A line of JSON on stderr for every request, or none."
    )

    @property
    def style(self) -> str:
        """Return format and level as one text."""
        return f"{self.format}:{self.level}"


class RequestLogSettings(Section):
    days_max: int = Field(90, ge=1, description="How long the request log keeps a request, in days.")
    rows_max: int = Field(
        1_000_000, ge=1, description="Maximum number of requests in the request log; the oldest are deleted first."
    )
