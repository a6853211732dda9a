"""Rotary embeddings as in config.json: their base, the rotated share of a head, and how they are stretched."""

import math
from dataclasses import dataclass
from typing import Literal

from cluster.errors import ModelInvalid, ModelUnsupported
from cluster.models.model_config import ModelConfig

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
PLAIN_ROPES: tuple[RopeKind, ...] = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """`rotary_dim` values of a head rotate, 0 means all; `attention_factor` scales queries and keys alike.

    "dynamic" rotates as "default" does: its base only grows beyond the served context. "longrope" has two sets of
    factors. A deployment whose context goes beyond `original_context` always uses the long one: a change in
    mid-sequence would invalidate the keys that are in the cache.
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    rotary_dim: int = 0


def read_rope(
    config: ModelConfig, stretching: ModelConfig, theta: float, kinds: tuple[RopeKind, ...], head_dim: int
) -> Rope:
    """Return the rope for `stretching`, an object inside `config`.

    `theta` is the base, a number without unit, if `stretching` names none. Raise ModelUnsupported for a type that
    is not in `kinds`, and ModelInvalid for impossible settings.
    """
    kind = stretching.get("rope_type") or stretching.get("type") or "default"
    if kind == "su":  # The first name that Phi-3 used.
        kind = "longrope"
    if kind not in kinds:
        raise ModelUnsupported(
            f"config.json: rope type {kind!r} is not supported for this family; supported: {', '.join(kinds)}"
        )
    context = config.count("max_position_embeddings")
    # Phi-3 writes the original context beside the factors, all others among them.
    original = config.get("original_max_position_embeddings") or context
    original = stretching.count("original_max_position_embeddings", original)
    stretched = kind in ("linear", "dynamic", "llama3", "yarn")
    factor = stretching.number("factor", context / original if kind in ("yarn", "longrope") else 1.0)
    if factor < 1.0 and stretched:
        raise ModelInvalid(f"config.json: rope factor must be 1 or more, not {factor}")
    share = stretching.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * share)
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise ModelInvalid(f"config.json: partial_rotary_factor {share} turns {rotary_dim} of {head_dim} values")
    rope = Rope(
        theta=stretching.number("rope_theta", theta),
        kind=kind,
        factor=factor,
        low_freq_factor=stretching.number("low_freq_factor", 1.0),
        high_freq_factor=stretching.number("high_freq_factor", 4.0),
        original_context=original,
        attention_factor=_attention_factor(kind, factor, original, stretching),
        beta_fast=stretching.number("beta_fast", 32.0),
        beta_slow=stretching.number("beta_slow", 1.0),
        truncate=stretching.get("truncate") is not False,
        short_factors=stretching.numbers("short_factor"),
        long_factors=stretching.numbers("long_factor"),
        rotary_dim=rotary_dim,
    )
    _check(rope, stretching)
    return rope


def _check(rope: Rope, stretching: ModelConfig) -> None:
    if rope.theta <= 0:
        raise ModelInvalid(f"config.json: rope_theta must be above 0, not {rope.theta}")
    if rope.kind == "llama3" and stretching.get("original_max_position_embeddings") is None:
        raise ModelInvalid("config.json: rope type 'llama3' needs original_max_position_embeddings")
    if rope.kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise ModelInvalid("config.json: high_freq_factor must be above low_freq_factor")
    if rope.kind == "longrope":
        for name, factors in (("short_factor", rope.short_factors), ("long_factor", rope.long_factors)):
            if len(factors) != rope.rotary_dim // 2 or min(factors) <= 0:
                raise ModelInvalid(
                    f"config.json: {name} must hold {rope.rotary_dim // 2} positive numbers, it has {len(factors)}"
                )


def _attention_factor(kind: str, factor: float, original: int, stretching: ModelConfig) -> float:
    """Return the attention scale of a stretched rope: from the file, or from YaRN's and LongRoPE's papers."""
    if stretching.get("attention_factor") is not None and kind in ("yarn", "longrope"):
        return stretching.number("attention_factor")
    if kind == "yarn":
        mscale = stretching.number("mscale", 0.0)
        mscale_all = stretching.number("mscale_all_dim", 0.0)
        if mscale and mscale_all:
            return _yarn_scale(factor, mscale) / _yarn_scale(factor, mscale_all)
        return _yarn_scale(factor, 1.0)
    if kind == "longrope" and factor > 1:
        return math.sqrt(1 + math.log(factor) / math.log(original))
    return 1.0


def _yarn_scale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
