"""What an auditor has found about sellers, signed, for whoever trusts it. Pure.

A listing's own evidence is its seller's word: anybody can write an auditor's name there. What counts is what the
auditor itself says of the same model, weights and quantization. It says what was looked at, never what a model is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from market.listings.listing import TIERS, Id, Quantization, Tier
from market.records.envelope import Count, Hex32, Record

FINDINGS_MAX = 16
"""In one record, which has to stay below 16 KiB."""
LASTS_MS = 2 * 86_400_000
"""So long findings count unless they are said again."""


class Finding(Struct, frozen=True):
    """What is known of one thing that a seller lists: `tier` is what was passed, `audits` of how many.

    `digest` is the hash of what was found (`market.auditing.evidence.digest_of`).
    """

    seller: Hex32
    model: Id
    weights: Hex32
    quantization: Quantization
    tier: Tier
    is_suspended: bool
    audits: Count
    made_ms: Count
    digest: Hex32


class Findings(Struct, frozen=True):
    entries: Annotated[tuple[Finding, ...], Meta(max_length=FINDINGS_MAX)]


@dataclass(frozen=True, slots=True)
class Believed:
    """What auditors whom the reader trusts have found about one thing that a seller lists."""

    tier: Tier = "declared"
    suspended_by: str = ""


def read_findings(record: Record) -> Findings:
    """Return what the auditor says.

    Raises:
        RecordInvalid: the record is of another kind, or says something else.
    """
    return record.read("findings", Findings)


def page_of(seller: str) -> str:
    """The record that a seller's findings are in: an auditor says all of it again where one has changed."""
    return f"page-{seller[0]}"


Thing = tuple[str, str, str, str]
"""A seller, and model, weights and quantization as it lists them."""


def believed(told: Iterable[tuple[str, Findings]], trusted: frozenset[str]) -> Mapping[Thing, Believed]:
    """What to believe of what auditors (by identity) have said. Nobody's word about itself counts.

    Whom one of them has suspended is suspended; otherwise the highest tier counts.
    """
    found: dict[Thing, Believed] = {}
    for auditor, findings in told:
        if auditor not in trusted:
            continue
        for each in findings.entries:
            if each.seller == auditor:
                continue
            thing = (each.seller, each.model, each.weights, each.quantization)
            known = found.get(thing, Believed())
            suspended_by = known.suspended_by or (auditor if each.is_suspended else "")
            found[thing] = Believed(max(known.tier, each.tier, key=TIERS.index), suspended_by)
    return found
