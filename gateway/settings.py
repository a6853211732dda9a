"""The one reader of environment and settings file; everything else receives plain values."""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from accounting.errors import AmountInvalid
from accounting.money import Price, parse_usd

LaneName = Literal["cluster", "pool", "cloud"]

ENV_PREFIX = "MILLRACE_"
FILE_NAME = "millrace.toml"
_DELIMITER = "__"
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


class SettingsInvalid(Exception):
    """A setting is unknown or has a value that cannot be used; the message names it."""


def _whole(path: Path) -> Path:
    """As a shell would have meant it, and the same whatever folder the program goes to."""
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"{path}: {error}") from None


WholePath = Annotated[Path, AfterValidator(_whole)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(_Section):
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(8400, ge=0, le=65535, description="HTTP port; 0 takes a free one.")
    body_bytes_max: int = Field(8 * 2**20, ge=1024, description="Largest request body, in bytes.")
    requests_max: int = Field(1024, ge=1, description="Most requests answered at once; more get a 503.")
    drain_s: int = Field(30, ge=0, description="How long a stop waits for running requests, in seconds.")


class DatabaseSettings(_Section):
    dsn: SecretStr | None = Field(
        None, description="PostgreSQL DSN; without one the books are an SQLite file in the data folder."
    )


class LogSettings(_Section):
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe line written.")
    format: Literal["json", "console"] = Field("json", description="JSON lines, or coloured text for people.")

    @property
    def style(self) -> str:
        """As nodes take it."""
        return f"{self.format}:{self.level}"


class ClusterSettings(_Section):
    model: str | None = Field(None, description="Model to split: a local folder or a Hugging Face id.")
    embedding_model: str | None = Field(
        None, description="Model for embeddings, whole on one machine: a local folder or a Hugging Face id."
    )
    nodes: int = Field(0, ge=0, le=64, description="How many nodes to start on this machine.")
    host: str | None = Field(None, description="Address where nodes connect; the server's host by default.")
    port: int = Field(0, ge=0, le=65535, description="Port where nodes connect; 0 is the HTTP port + 1 if free.")
    precision: Literal["fp32", "bf16", "fp16", "int8", "int4"] | None = Field(
        None, description="Pinned precision; without one the widest that fits. int8 is fastest on most CPUs."
    )
    context_tokens: int | None = Field(
        None,
        ge=64,
        description="Longest prompt with its answer, in tokens; "
        "without one the model's, less where memory is short.",
    )
    slots: int = Field(32, ge=1, le=1024, description="Most sequences in the running batch.")
    stages_min: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Fewest stages, where machines are there; by default as many as local nodes.",
    )
    goal: Literal["throughput", "latency"] = Field(
        "throughput",
        description="Plan for the most tokens per second, or for the least time per token of one stream.",
    )
    speculation: bool = Field(True, description="Draft from the text itself where that makes answers faster.")
    owners: tuple[str, ...] = Field(
        (),
        description="The only nodes that may hold the embedding, the first and the last layers: ids, "
        "their first 6 digits or more, or names.",
        examples=['["3f6c0d", "desk"]'],
    )
    owner_layers: int = Field(1, ge=1, le=1024, description="How many first and last layers stay with the owners.")
    discovery: bool = Field(
        True, description="Announce the nodes' port by mDNS where others can reach it; look for it when joining."
    )
    memory_share: float = Field(1.0, gt=0, le=1, description="Part of free memory that local nodes may fill.")


class PoolBackend(_Section):
    name: str = Field(pattern=r"^[A-Za-z0-9._@-]{1,80}$", description="How logs and reasons call this backend.")
    base_url: str = Field(description="OpenAI-compatible base URL, with its /v1.")
    api_key: SecretStr | None = Field(None, description="Bearer token that the backend asks for.")
    models: tuple[str, ...] = Field((), description="Models it serves; asked of its /models when empty.")


class PoolSettings(_Section):
    backends: tuple[PoolBackend, ...] = Field(
        (),
        description="Whole copies of models on single machines.",
        examples=['[{"name": "desk", "base_url": "http://192.168.1.20:11434/v1"}]'],
    )
    probe_s: float = Field(10.0, gt=0, description="How often backends are asked for their models, in seconds.")
    first_byte_s: float = Field(300.0, gt=0, description="Patience for a backend's first byte, in seconds.")
    silence_s: float = Field(120.0, gt=0, description="Patience between two bytes, in seconds.")


class CloudModel(_Section):
    model: str = Field(description="litellm's name of the model, provider first: openai/gpt-4o-mini.")
    key: str | None = Field(None, description="Name of the key in the keys file; the provider's usual one else.")
    base_url: str | None = Field(None, description="Other address than the provider's own.")
    prompt_usd_per_mtok: str | None = Field(None, description="Price of a million prompt tokens, as text.")
    completion_usd_per_mtok: str | None = Field(None, description="Price of a million completion tokens, as text.")
    max_output_tokens: int | None = Field(
        None,
        ge=1,
        description="Longest answer; sizes the money hold of a request that names no limit, and is its.",
    )
    parameters: dict[str, str] = Field({}, description="Further litellm arguments, as api_version.")
    secret_parameters: dict[str, str] = Field({}, description="litellm argument -> name in the keys file.")

    @field_validator("prompt_usd_per_mtok", "completion_usd_per_mtok")
    @classmethod
    def _is_a_price(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                parse_usd(text)
            except AmountInvalid as error:
                raise ValueError(str(error)) from None
        return text

    @model_validator(mode="after")
    def _has_a_whole_price(self) -> Self:
        if (self.prompt_usd_per_mtok is None) != (self.completion_usd_per_mtok is None):
            raise ValueError("prompt_usd_per_mtok and completion_usd_per_mtok are one price: set both or neither")
        return self

    @property
    def own_price(self) -> Price | None:
        """In nano-USD per million tokens, where the owner set one; nothing is cheaper for being cached."""
        if self.prompt_usd_per_mtok is None:
            return None
        prompt_nano = parse_usd(self.prompt_usd_per_mtok)
        return Price(prompt_nano, prompt_nano, parse_usd(self.completion_usd_per_mtok))


class CloudSettings(_Section):
    models: dict[str, CloudModel] = Field(
        {},
        description="Cloud models by the name that callers use.",
        examples=['{"fast": {"model": "openai/gpt-4o-mini", "key": "OPENAI_API_KEY"}}'],
    )
    keys_file: WholePath | None = Field(
        None, description="NAME=VALUE lines, mode 0600; read by the cloud worker alone."
    )
    proxies: dict[str, str] = Field(
        default_factory=lambda: {name: os.environ[name] for name in _PROXY_VARIABLES if name in os.environ},
        description="HTTPS_PROXY and the like for the cloud worker; those of the environment by default.",
        examples=['{"HTTPS_PROXY": "http://proxy:3128"}'],
    )


class PolicySettings(_Section):
    lanes: tuple[LaneName, ...] = Field(
        ("cluster", "pool"), description="Lanes that a new key may use.", examples=['["cluster", "pool"]']
    )


class RoutingSettings(_Section):
    target_s: float = Field(
        30.0, gt=0, description="Predicted seconds to the first token from which waiting costs."
    )
    time_nano_per_s: int = Field(1_000_000, ge=0, description="Worth of a second past the target, in nano-USD.")
    failure_nano: int = Field(50_000_000, ge=0, description="Worth of avoiding a failed request, in nano-USD.")


class RequestLogSettings(_Section):
    days_max: int = Field(90, ge=1, description="How long a request stays in the request log, in days.")
    rows_max: int = Field(1_000_000, ge=1, description="Most requests in the request log; the oldest go first.")


class Settings(BaseSettings):
    """Every setting. Sources, strongest first: command line, MILLRACE_* variables, millrace.toml, defaults."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=_DELIMITER,
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    data_dir: WholePath = Field(
        default_factory=lambda: default_data_dir(), description="Folder of everything kept."
    )
    server: ServerSettings = ServerSettings()
    database: DatabaseSettings = DatabaseSettings()
    log: LogSettings = LogSettings()
    cluster: ClusterSettings = ClusterSettings()
    pool: PoolSettings = PoolSettings()
    cloud: CloudSettings = CloudSettings()
    policy: PolicySettings = PolicySettings()
    routing: RoutingSettings = RoutingSettings()
    request_log: RequestLogSettings = RequestLogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the parent names the arguments
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _EnvironmentSource(settings_cls), _FileSource(settings_cls)


class _EnvironmentSource(EnvSettingsSource):
    """MILLRACE_* variables; one that should be JSON and is not is refused by its name."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except (ValueError, RecursionError):
            # The parent says the section alone. The value may hold secrets and is not repeated.
            name = next(
                (have for have in os.environ if _is_variable_of(have, field_name) and os.environ[have] == value),
                field_name,
            )
            # Inside of a mapping there is no field, whatever the annotation says.
            examples = getattr(field, "examples", None)
            like = f", such as {examples[0]}" if examples else ""
            raise SettingsInvalid(f"{name}: JSON expected{like}") from None


def _is_variable_of(variable: str, field_name: str) -> bool:
    return variable.upper().startswith(ENV_PREFIX) and variable.upper().endswith(field_name.upper())


class _FileSource(PydanticBaseSettingsSource):
    """millrace.toml in the data folder that the stronger sources name."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        try:
            path = _whole(Path(self.current_state.get("data_dir") or default_data_dir())) / FILE_NAME
        except ValueError:
            return {}  # Said of data_dir itself.
        try:
            return tomllib.loads(path.read_bytes().decode())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except UnicodeDecodeError:
            raise SettingsInvalid(f"{path}: not UTF-8, as TOML is") from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsInvalid(f"{path}: {error}") from None
        except OSError as error:
            raise SettingsInvalid(f"{path}: cannot be read: {error.strerror}") from None


def read_settings(**given: Any) -> Settings:
    """Settings from all sources; `given` (nested dictionaries) is the command line's. Raises SettingsInvalid."""
    refuse_unknown(os.environ)
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        why = "is no setting" if first["type"] == "extra_forbidden" else first["msg"]
        raise SettingsInvalid(f"{name}: {why}") from None


def refuse_unknown(environment: Mapping[str, str]) -> None:
    """Raises SettingsInvalid for a MILLRACE_* variable that sets nothing, with the nearest that does."""
    known = dict(variables())
    for name in sorted(environment):
        if not name.startswith(ENV_PREFIX):
            continue
        # Beyond a known name goes the key of a mapping, as in MILLRACE_CLOUD__MODELS__fast.
        if any(name == have or name.startswith(have + _DELIMITER) for have in known):
            continue
        near = difflib.get_close_matches(name, known, n=1)
        raise SettingsInvalid(f"{name} is no setting" + (f"; did you mean {near[0]}?" if near else ""))


def variables() -> Iterator[tuple[str, str]]:
    """Every setting's variable with its description, for checks and documentation."""
    for name, field in Settings.model_fields.items():
        variable = ENV_PREFIX + name.upper()
        section = field.annotation
        if isinstance(section, type) and issubclass(section, _Section):
            for inner, inner_field in section.model_fields.items():
                yield variable + _DELIMITER + inner.upper(), inner_field.description or ""
        else:
            yield variable, field.description or ""


def default_data_dir() -> Path:
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "millrace"
