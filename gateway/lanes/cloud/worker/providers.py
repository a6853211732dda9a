"""The configuration that the gateway sends the cloud worker: models, providers, the keys file, and every bound."""

from typing import Annotated

from msgspec import Meta, Struct, field

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class CloudModel(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One model of one provider, under the public name that is its key in `CloudConfiguration.models`."""

    litellm_model: Name
    """litellm's name with the provider in front, as in `anthropic/claude-sonnet-4-5`."""
    base_url: str | None = None
    """The provider's own address if None. The worker connects to no other address."""
    key_name: Name | None = None
    """The line of the keys file with the API key; if None, the usual one for a provider's own address."""
    parameters: dict[Name, str] = field(default_factory=dict)
    """Further litellm arguments that are no secret, as `api_version` or `aws_region_name`."""
    secret_parameters: dict[Name, Name] = field(default_factory=dict)
    """Further litellm arguments that are secrets: argument -> line of the keys file."""


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How long a provider may take; `total_s` also ends the slowest stream."""

    connect_s: Seconds = 10.0
    first_byte_s: Seconds = 120.0
    between_chunks_s: Seconds = 60.0
    total_s: Seconds = 900.0


class ProviderLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of one worker."""

    body_bytes_max: Annotated[int, Meta(gt=0)] = 32 * 1024 * 1024
    body_s: Seconds = 30.0
    requests_in_flight_max: Annotated[int, Meta(gt=0)] = 512
    memory_bytes_max: Annotated[int, Meta(gt=0)] = 4 * 1024 * 1024 * 1024
    """The limit of address space, most of which a worker maps and never uses."""
    drain_s: Seconds = 30.0
    """How long running answers may continue after SIGTERM."""


class CloudConfiguration(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The gateway's configuration of the cloud worker."""

    models: dict[Name, CloudModel]
    keys_file: Name
    timeouts: Timeouts = Timeouts()
    limits: ProviderLimits = ProviderLimits()
    proxies: dict[Name, str] = field(default_factory=dict)
    """HTTPS_PROXY, NO_PROXY and similar variables.

    They may have a password, so they are not in the environment.
    """


class Orders(Struct, frozen=True, forbid_unknown_fields=True):
    """The worker's orders: one JSON line on its stdin, which neither `ps` nor /proc shows."""

    socket_path: Name
    configuration: CloudConfiguration
