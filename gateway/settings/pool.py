"""The pool lane: whole copies of models on single machines."""

import ipaddress
from typing import Annotated, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, Field, SecretStr

from gateway.settings.base import Privacy
from runtime.settings import Section

BackendKind = Literal[
    "auto",
    "ollama",
    "llama-server",
    "vllm",
    "sglang",
    "lm-studio",
    "tabby",
    "mlx-lm",
    "exo",
    "dllama",
    "gpustack",
    "millrace",
    "openai",
]

# Suffixes of names that only a network's own resolver knows.
_OWN_SUFFIXES = (".local", ".lan", ".internal", ".home.arpa", ".localhost")


def _checked_url(text: str) -> str:
    """Return the address of a backend, with /v1 if it has no path. Raises ValueError."""
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not an http:// or https:// address")
    if parts.username is not None or parts.password is not None:
        raise ValueError("credentials do not belong in the address; set api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"{text!r} must end with its path, without ? or #")
    _ = parts.port  # Raises for an invalid port.
    path = parts.path.rstrip("/") or "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _one_line(key: SecretStr | None) -> SecretStr | None:
    """Check that the key is valid in a header. The message omits its value."""
    if key and not (key.get_secret_value().isascii() and key.get_secret_value().isprintable()):
        raise ValueError("must be one line of ASCII characters")
    return key


class PoolBackend(Section):
    name: str = Field(pattern=r"^[A-Za-z0-9._@-]{1,80}$", description="Name of this backend in logs and reasons.")
    base_url: Annotated[str, AfterValidator(_checked_url)] = Field(
        description="OpenAI-compatible base URL, with its /v1."
    )
    api_key: Annotated[SecretStr | None, AfterValidator(_one_line)] = Field(
        None, description="Bearer token that the backend requires."
    )
    kind: BackendKind = Field("auto", description="Kind of server; auto detects it.")
    models: tuple[str, ...] | dict[str, str] = Field(
        (),
        description="Models that it serves, or callers' names with the backend's own; detected if empty.",
    )
    weight: float = Field(
        1.0, gt=0, le=1000, description="Share of requests among backends that are equally good."
    )
    slots: int | None = Field(
        None, ge=1, le=65_536, description="Concurrent requests that it serves; detected if empty."
    )
    clearance: Privacy | None = Field(
        None,
        description="Maximum data label; if empty, private in private networks and public elsewhere.",
    )
    region: str | None = Field(
        None, max_length=80, description="Region of the server, for display and preferences."
    )
    quantization: str | None = Field(
        None, max_length=40, description="Quantization of its weights; detected if empty."
    )
    keeps_data: bool = Field(False, description="Whether its owner stores requests.")

    @property
    def is_own(self) -> bool:
        """Return whether the address belongs to this machine or to private networks."""
        return is_own_host(urlsplit(self.base_url).hostname or "")

    @property
    def cleared_for(self) -> Privacy:
        return self.clearance or ("private" if self.is_own else "public")


def is_own_host(host: str) -> bool:
    """Decide by form only. A name is not resolved; it counts as own if public DNS cannot contain it."""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return "." not in host or host.lower().endswith(_OWN_SUFFIXES)


class PoolSettings(Section):
    backends: tuple[PoolBackend, ...] = Field(
        (),
        description="Servers with whole models.",
        examples=['[{"name": "desk", "base_url": "http://192.168.1.20:11434/v1"}]'],
    )
    aliases: dict[str, tuple[str, ...]] = Field(
        {},
        description="Aliases of models in any lane; each backend or lane uses the first model that it has.",
        examples=['{"gpt-4o-mini": ["qwen3:8b", "llama3.2"]}'],
    )
    probe_s: float = Field(10.0, gt=0, description="Interval of probes of backends, in seconds.")
    probe_timeout_s: float = Field(5.0, gt=0, le=60, description="Timeout of one probe, in seconds.")
    first_byte_s: float = Field(
        60.0,
        gt=0,
        description="Timeout for a backend's first byte, in seconds, in addition to the predicted time.",
    )
    silence_s: float = Field(120.0, gt=0, description="Timeout between two bytes, in seconds.")
    total_s: float = Field(3600.0, gt=0, description="Maximum duration of an answer, in seconds.")
