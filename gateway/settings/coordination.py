"""Settings of etcd, through which gateways learn of revoked keys."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from runtime.settings import Section, WholePath


def _is_member_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.path.strip("/"):
        raise ValueError("must be http:// or https:// with name and port, without a path")
    return url.rstrip("/")


class CoordinationSettings(Section):
    etcd_urls: tuple[Annotated[str, AfterValidator(_is_member_url)], ...] = Field(
        (),
        max_length=9,
        description=(
            'Members of etcd, as JSON: `["http://10.0.0.1:2379"]`. Gateways that share a PostgreSQL then also tell '
            "each other through etcd which keys are revoked."
        ),
    )
    etcd_ca: WholePath | None = Field(
        None, description="PEM file of the authority that signs etcd's certificates."
    )
    etcd_certificate: WholePath | None = Field(
        None, description="PEM file of this gateway's certificate and key, if etcd requires one."
    )
    prefix: str = Field("millrace", pattern=r"^[\w.-]+$", description="Prefix of all keys in etcd.")
    timeout_s: float = Field(
        3.0, ge=0.5, le=30, description="Timeout of one member of etcd, in seconds; then another one is used."
    )
