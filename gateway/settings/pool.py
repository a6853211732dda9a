"""The pool lane: whole copies of models on single machines."""

from pydantic import Field, SecretStr

from gateway.settings.base import Section


class PoolBackend(Section):
    name: str = Field(pattern=r"^[A-Za-z0-9._@-]{1,80}$", description="How logs and reasons call this backend.")
    base_url: str = Field(description="OpenAI-compatible base URL, with its /v1.")
    api_key: SecretStr | None = Field(None, description="Bearer token that the backend asks for.")
    models: tuple[str, ...] = Field((), description="Models it serves; asked of its /models when empty.")


class PoolSettings(Section):
    backends: tuple[PoolBackend, ...] = Field(
        (),
        description="Whole copies of models on single machines.",
        examples=['[{"name": "desk", "base_url": "http://192.168.1.20:11434/v1"}]'],
    )
    probe_s: float = Field(10.0, gt=0, description="How often backends are asked for their models, in seconds.")
    first_byte_s: float = Field(300.0, gt=0, description="Patience for a backend's first byte, in seconds.")
    silence_s: float = Field(120.0, gt=0, description="Patience between two bytes, in seconds.")
