"""Advice as plain data, for programs and commands."""

from typing import Any

from msgspec import to_builtins

from accounting.money import format_usd
from gateway.advice.advice import Advice
from gateway.advice.break_even import BreakEven
from gateway.advice.ways import ServingOption


def advice_facts(advice: Advice) -> dict[str, Any]:
    return {
        "model": advice.model,
        "best": advice.best.kind if advice.best else None,
        "because": list(advice.because),
        "ways": [_way(way) for way in advice.ways],
        "break_even": _even(advice.break_even) if advice.break_even else None,
    }


def _way(way: ServingOption) -> dict[str, Any]:
    return {
        "way": way.kind,
        "open": way.is_open,
        "why": way.why,
        "machines": list(way.machines),
        "precision": way.precision,
        "needed_bytes": way.needed_bytes,
        "usable_bytes": way.usable_bytes,
        "context_tokens": way.context_tokens,
        "token_s": way.token_s,
        "tokens_per_s": way.tokens_per_s,
        "first_token_s": way.first_token_s,
        "usd_per_mtok": None if way.nano_per_mtok is None else format_usd(way.nano_per_mtok),
        "assumed": list(way.assumed),
        "stages": [
            {
                "node": stage.member.name,
                "layers": [stage.spec.first_layer, stage.spec.end_layer - 1],
                "weight_bytes": stage.weight_bytes,
                "reason": stage.reason,
            }
            for stage in (way.plan.stages if way.plan else ())
        ],
        "reasons": list(way.plan.reasons) if way.plan else [],
        "predicted": to_builtins(way.plan.predicted) if way.plan else None,
    }


def _even(even: BreakEven) -> dict[str, Any]:
    return {
        "provider": even.provider,
        "own_usd_per_mtok": format_usd(even.own_nano_per_mtok),
        "cloud_usd_per_mtok": format_usd(even.cloud_nano_per_mtok),
        "fixed_usd_per_day": format_usd(even.fixed_nano_per_day),
        "tokens_per_day": even.tokens_per_day,
        "tokens_per_day_max": even.tokens_per_day_max,
    }
