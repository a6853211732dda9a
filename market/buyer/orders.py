"""The gateway's orders to the buyer: one line of JSON on its stdin, so that nothing of it shows in `ps`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class BuyerLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on load, and on how long to wait for sellers, in seconds."""

    first_byte_s: Seconds = 20.0
    silence_s: Seconds = 15.0
    first_token_s: Seconds = 120.0
    total_s: Seconds = 900.0
    requests_in_flight_max: int = 256
    body_bytes_max: int = 16 * 2**20
    body_s: Seconds = 30.0
    drain_s: Seconds = 20.0
    audit_pause_s: Seconds = 60.0
    memory_bytes_max: int = 8 * 2**30


class Orders(Struct, frozen=True, forbid_unknown_fields=True):
    """The buyer's settings. `folder` is the market's; prices are in nano-USD per million tokens."""

    socket_path: str
    folder: str
    buy_for: tuple[Literal["public", "internal"], ...]
    models: tuple[str, ...] = ()
    marketplace_url: str = ""
    marketplace_key: str = ""
    marketplace_id: str = ""
    peers: tuple[str, ...] = ()
    allocation_nano: int = 500_000_000
    prompt_nano_max: int = 10**15
    completion_nano_max: int = 10**15
    trusted_auditors: tuple[str, ...] = ()
    partners: tuple[str, ...] = ()
    allows_loopback: bool = False
    audit_nano_per_day: int = 0
    tells_findings: bool = False
    tokenizers: dict[str, str] = {}
    """The admin's tokenizer files, by their SHA-256."""
    bounds: BuyerLimits = BuyerLimits()
