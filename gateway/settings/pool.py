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
    """An address we may ask, with its /v1 where no path is given. Raises ValueError."""
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is no http:// or https:// address")
    if parts.username is not None or parts.password is not None:
        raise ValueError("credentials do not belong in the address; set api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"{text!r} must end with its path; leave out what follows ? or #")
    _ = parts.port  # Raises for one that is no port.
    path = parts.path.rstrip("/") or "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _one_line(key: SecretStr | None) -> SecretStr | None:
    """A key that can stand in a header. Its value is not repeated."""
    if key and not (key.get_secret_value().isascii() and key.get_secret_value().isprintable()):
        raise ValueError("a key is one line of ASCII")
    return key


class PoolBackend(Section):
    name: str = Field(pattern=r"^[A-Za-z0-9._@-]{1,80}$", description="How logs and reasons call this backend.")
    base_url: Annotated[str, AfterValidator(_checked_url)] = Field(
        description="OpenAI-compatible base URL, with its /v1."
    )
    api_key: Annotated[SecretStr | None, AfterValidator(_one_line)] = Field(
        None, description="Bearer token that the backend asks for."
    )
    kind: BackendKind = Field("auto", description="Which server it is; recognised by its own endpoints when auto.")
    models: tuple[str, ...] | dict[str, str] = Field(
        (),
        description="Models it serves, or callers' names with the backend's own; asked of it when empty.",
    )
    weight: float = Field(1.0, gt=0, le=1000, description="Share among backends that are equally good.")
    slots: int | None = Field(None, ge=1, le=65_536, description="Requests it works on at once; asked when empty.")
    clearance: Privacy | None = Field(
        None,
        description="Most private label that may go there: private in own networks, public elsewhere, if empty.",
    )
    region: str | None = Field(None, max_length=80, description="Where it stands, for people and preferences.")
    quantization: str | None = Field(None, max_length=40, description="Of its weights; asked when empty.")
    keeps_data: bool = Field(False, description="Whether its owner keeps what is sent.")

    @property
    def is_own(self) -> bool:
        """Whether the address is one of this machine or of its own networks."""
        return is_own_host(urlsplit(self.base_url).hostname or "")

    @property
    def cleared_for(self) -> Privacy:
        return self.clearance or ("private" if self.is_own else "public")


def is_own_host(host: str) -> bool:
    """Judge by form only. A name is not resolved; it counts as own if public DNS cannot know it."""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return "." not in host or host.lower().endswith(_OWN_SUFFIXES)


class PoolSettings(Section):
    backends: tuple[PoolBackend, ...] = Field(
        (),
        description="Whole copies of models on single machines.",
        examples=['[{"name": "desk", "base_url": "http://192.168.1.20:11434/v1"}]'],
    )
    aliases: dict[str, tuple[str, ...]] = Field(
        {},
        description="Further names of models, in any lane; each backend or lane gives the first that it has.",
        examples=['{"gpt-4o-mini": ["qwen3:8b", "llama3.2"]}'],
    )
    probe_s: float = Field(10.0, gt=0, description="How often backends are asked for their models, in seconds.")
    probe_timeout_s: float = Field(
        5.0, gt=0, le=60, description="Patience for one question to a backend, in seconds."
    )
    first_byte_s: float = Field(
        60.0,
        gt=0,
        description="Patience for a backend's first byte, in seconds, beyond what its predicted time allows.",
    )
    silence_s: float = Field(120.0, gt=0, description="Patience between two bytes, in seconds.")
    total_s: float = Field(3600.0, gt=0, description="The longest that an answer may take, in seconds.")
