"""Settings of the coordinator through which gateways agree on leaders, membership and revoked keys."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from runtime.settings import Section, WholePath


def _is_member_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.path.strip("/"):
        raise ValueError("a member's URL is http:// or https://, its name and port, and nothing else")
    return url.rstrip("/")


class CoordinationSettings(Section):
    kind: Literal["database", "etcd"] = Field(
        "database", description="What gateways that share a PostgreSQL agree through: that, or an etcd of yours."
    )
    etcd_urls: tuple[Annotated[str, AfterValidator(_is_member_url)], ...] = Field(
        (), max_length=9, description='Its members, as JSON: `["http://10.0.0.1:2379"]`.'
    )
    etcd_ca: WholePath | None = Field(None, description="PEM file of the authority that signs its certificates.")
    etcd_certificate: WholePath | None = Field(
        None, description="PEM of this gateway's certificate and key, where etcd asks for one."
    )
    prefix: str = Field(
        "millrace", pattern=r"^[\w.-]+$", description="What the names of all our keys in etcd begin with."
    )
    timeout_s: float = Field(
        3.0, ge=0.5, le=30, description="Patience with one member of etcd, in seconds; then another one is asked."
    )

    @model_validator(mode="after")
    def _names_members(self) -> Self:
        if self.kind == "etcd" and not self.etcd_urls:
            raise ValueError("etcd_urls must name the members of etcd")
        return self
