"""Reads the environment and the settings file; all other code receives plain values.

Modules:
    base          The base classes and types of every settings section
    batches       Settings of files and batches: retention, and how much capacity batches leave to other requests
    cache         Settings of the answer cache: what is cached, for whom and how long
    cloud         The cloud lane: providers, their models and prices
    cluster       The cluster lane: the model that is split across your machines
    coordination  Settings of etcd, through which gateways learn of revoked keys
    identity      Settings of authentication: sign-in through an identity provider, and limits on wrong keys and
                  passwords
    limits        Settings of a Redis that several gateways share
    metering      Settings for counting tokens, and the cost of your machines
    payments      Payments through Stripe: the account and the terms
    pool          The pool lane: whole copies of models on single machines
    responses     Retention of stored answers of the Responses API
    routing       Settings of routing between lanes: hard rules and weights
    server        Settings of the server: addresses, storage and logs
    telemetry     Export of traces and metrics in OpenTelemetry's GenAI conventions
"""

import difflib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.settings.base import LaneName
from gateway.settings.batches import BatchesSettings
from gateway.settings.cache import CacheSettings
from gateway.settings.cloud import CloudModel, CloudSettings
from gateway.settings.cluster import ClusterSettings
from gateway.settings.coordination import CoordinationSettings
from gateway.settings.identity import IdentitySettings
from gateway.settings.limits import RedisSettings
from gateway.settings.metering import CostsSettings, MeteringSettings
from gateway.settings.payments import PaymentsSettings
from gateway.settings.pool import PoolBackend, PoolSettings
from gateway.settings.responses import ResponsesSettings
from gateway.settings.routing import PolicySettings, RoutingSettings
from gateway.settings.server import DatabaseSettings, LogSettings, RequestLogSettings, ServerSettings
from gateway.settings.telemetry import TelemetrySettings
from market.settings.buyer import MarketSettings
from market.settings.marketplace import MarketplaceSettings
from market.settings.seller import SellingSettings, SellingWindow, SoldModel
from runtime.settings import Section, SettingsInvalid, WholePath, whole

__all__ = [
    "BatchesSettings",
    "CacheSettings",
    "CloudModel",
    "CloudSettings",
    "ClusterSettings",
    "CoordinationSettings",
    "CostsSettings",
    "DatabaseSettings",
    "IdentitySettings",
    "LaneName",
    "LogSettings",
    "MarketSettings",
    "MarketplaceSettings",
    "MeteringSettings",
    "PaymentsSettings",
    "PolicySettings",
    "PoolBackend",
    "PoolSettings",
    "RedisSettings",
    "RequestLogSettings",
    "ResponsesSettings",
    "RoutingSettings",
    "SellingSettings",
    "SellingWindow",
    "ServerSettings",
    "Settings",
    "SettingsInvalid",
    "SoldModel",
    "TelemetrySettings",
    "default_data_dir",
    "read_settings",
    "refuse_unknown",
    "variables",
]

ENV_PREFIX = "MILLRACE_"
FILE_NAME = "millrace.toml"
_DELIMITER = "__"


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
        default_factory=lambda: default_data_dir(),
        description="Data directory; ~/.local/share/millrace by default.",
    )
    server: ServerSettings = ServerSettings()
    database: DatabaseSettings = DatabaseSettings()
    log: LogSettings = LogSettings()
    cluster: ClusterSettings = ClusterSettings()
    pool: PoolSettings = PoolSettings()
    cloud: CloudSettings = CloudSettings()
    market: MarketSettings = MarketSettings()
    policy: PolicySettings = PolicySettings()
    identity: IdentitySettings = IdentitySettings()
    routing: RoutingSettings = RoutingSettings()
    request_log: RequestLogSettings = RequestLogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    redis: RedisSettings = RedisSettings()
    coordination: CoordinationSettings = CoordinationSettings()
    responses: ResponsesSettings = ResponsesSettings()
    cache: CacheSettings = CacheSettings()
    batches: BatchesSettings = BatchesSettings()
    metering: MeteringSettings = MeteringSettings()
    costs: CostsSettings = CostsSettings()
    payments: PaymentsSettings = PaymentsSettings()
    marketplace: MarketplaceSettings = MarketplaceSettings()
    selling: SellingSettings = SellingSettings()

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
    """MILLRACE_* variables; invalid JSON is refused by the variable's name."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except (ValueError, RecursionError):
            # The parent names only the section. The value may contain secrets and is not repeated.
            name = next(
                (have for have in os.environ if _is_variable_of(have, field_name) and os.environ[have] == value),
                field_name,
            )
            # A mapping's values are not fields, whatever their annotation is.
            examples = getattr(field, "examples", None)
            like = f", such as {examples[0]}" if examples else ""
            raise SettingsInvalid(f"{name}: JSON expected{like}") from None


def _is_variable_of(variable: str, field_name: str) -> bool:
    return variable.upper().startswith(ENV_PREFIX) and variable.upper().endswith(field_name.upper())


class _FileSource(PydanticBaseSettingsSource):
    """millrace.toml in the data directory, which stronger sources name."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        try:
            path = whole(Path(self.current_state.get("data_dir") or default_data_dir())) / FILE_NAME
        except ValueError:
            return {}  # The message concerns data_dir itself.
        try:
            return tomllib.loads(path.read_bytes().decode())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except UnicodeDecodeError:
            raise SettingsInvalid(f"{path}: not UTF-8, which TOML requires") from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsInvalid(f"{path}: {error}") from None
        except OSError as error:
            raise SettingsInvalid(f"{path}: cannot be read: {error.strerror}") from None


def read_settings(**given: Any) -> Settings:
    """Return settings from all sources; `given` (nested dictionaries) comes from the command line.

    Raises SettingsInvalid.
    """
    refuse_unknown(os.environ)
    try:
        return Settings(**given)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # Report an unknown name first: it may be a misspelling of a missing one.
        first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        why = "is not a setting" + _nearest(first["loc"]) if first["type"] == "extra_forbidden" else first["msg"]
        raise SettingsInvalid(f"{name}: {why}") from None


def _nearest(place: tuple[int | str, ...]) -> str:
    """Return the setting that an unknown name in millrace.toml probably means.

    It has a similar name, or the same name in another section.
    """
    *way, key = (str(part) for part in place)
    kind: type[BaseModel] = Settings
    for part in way:
        # Keys of mappings and positions in lists are not fields.
        if field := kind.model_fields.get(part):
            kind = next(_models_in(field.annotation), kind)
    elsewhere = [name for name in _dotted() if name.rpartition(".")[2] == key]
    near = [".".join((*way, name)) for name in difflib.get_close_matches(key, kind.model_fields, n=1)]
    return f"; did you mean {(near or elsewhere)[0]}?" if near or elsewhere else ""


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _dotted() -> Iterator[str]:
    for variable in variables():
        yield variable.name.removeprefix(ENV_PREFIX).lower().replace(_DELIMITER, ".")


def refuse_unknown(environment: Mapping[str, str]) -> None:
    """Raises SettingsInvalid for an unknown MILLRACE_* variable, with the nearest known one."""
    known = [variable.name for variable in variables()]
    for name in sorted(environment):
        if not name.startswith(ENV_PREFIX):
            continue
        # After a known name, the key of a mapping may follow, as in MILLRACE_CLOUD__MODELS__fast.
        if any(name == have or name.startswith(have + _DELIMITER) for have in known):
            continue
        near = difflib.get_close_matches(name, known, n=1)
        raise SettingsInvalid(f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))


class Variable(NamedTuple):
    """A setting for documentation. `default` is written as users would write it; empty if there is none."""

    name: str
    default: str
    description: str


def variables() -> Iterator[Variable]:
    """Yield every setting's variable, for checks and documentation."""
    for name, field in Settings.model_fields.items():
        variable = ENV_PREFIX + name.upper()
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            for inner, inner_field in section.model_fields.items():
                yield _variable(variable + _DELIMITER + inner.upper(), inner_field)
        else:
            yield _variable(variable, field)


def _variable(name: str, field: FieldInfo) -> Variable:
    default = None if field.default_factory else field.default
    if default is None or default in ("", (), {}):
        text = ""
    elif isinstance(default, float):
        text = f"{default:.12g}"
    else:
        text = default if isinstance(default, str) else json.dumps(default)
    return Variable(name, text, field.description or "")


def default_data_dir() -> Path:
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "millrace"
