"""Sign and read auditors' findings about sellers, for readers that trust them. Pure.

A listing's own evidence is only its seller's word, which may name any auditor. What counts is the auditor's own
statement about the same model, weights and quantization. It says what was checked, never what a model is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from market.protocol.listings.listing import TIERS, Id, Quantization, Tier
from market.protocol.records.envelope import Count, Hex32, Record

FINDINGS_MAX = 16
"""Most findings in one record, which has to stay below 16 KiB."""
LASTS_MS = 2 * 86_400_000
"""Findings are valid for this time unless they are repeated, in milliseconds."""


class AuditFinding(Struct, frozen=True):
    """The result for one thing that a seller lists. `tier` was passed, in `audits` audits.

    `digest` is the hash of the findings (`market.protocol.audits.evidence.digest_of`).
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
    entries: Annotated[tuple[AuditFinding, ...], Meta(max_length=FINDINGS_MAX)]


@dataclass(frozen=True, slots=True)
class Believed:
    """The findings of the reader's trusted auditors about one thing that a seller lists."""

    tier: Tier = "declared"
    suspended_by: str = ""


def read_findings(record: Record) -> Findings:
    """Return the auditor's findings.

    Raises:
        RecordInvalid: the record is of another kind, or has other content.
    """
    return record.read("findings", Findings)


def page_of(seller: str) -> str:
    """Return the name of the record with a seller's findings.

    An auditor signs the whole page again after a change.
    """
    return f"page-{seller[0]}"


Thing = tuple[str, str, str, str]
"""A seller, with the model, weights and quantization that it lists."""


def believed(
    findings_by_auditor: Iterable[tuple[str, Findings]], trusted: frozenset[str]
) -> Mapping[Thing, Believed]:
    """Return what to believe of auditors' statements (by identity). A statement about oneself never counts.

    A seller that one of them has suspended is suspended. Otherwise the highest tier counts.
    """
    found: dict[Thing, Believed] = {}
    for auditor, findings in findings_by_auditor:
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
