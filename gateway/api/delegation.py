"""Limits the permissions of keys that an organization's admin creates to those of the admin's own key. Pure."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import RoleForbids
from gateway.identity.key_rows import ANY, KeyTerms
from gateway.settings.base import PRIVACY_RANK, LaneName


class Allowed(Protocol):
    """The permissions of a caller's own key, or of a session without one."""

    @property
    def terms(self) -> KeyTerms: ...

    @property
    def lanes(self) -> Collection[LaneName]: ...


@dataclass(frozen=True, slots=True)
class OfSession:
    """The permissions of a session without a key: those of a new default key."""

    lanes: Collection[LaneName]
    terms: KeyTerms = ANY


def refuse_more_than_own(own: Allowed, terms: KeyTerms, lanes: Collection[LaneName]) -> None:
    """Raises RoleForbids, with the field that would allow more.

    `may_administer` is not compared: callers without it are refused before this check.
    """
    for field, allowed in _excesses(own, terms, lanes):
        raise RoleForbids(f"{field}: your own key allows {allowed}", param=field)


def _excesses(own: Allowed, terms: KeyTerms, lanes: Collection[LaneName]) -> Iterator[tuple[str, str]]:
    """Yield each field that allows more than `own`, with the text of what `own` allows."""
    for field, requested, allowed in (
        ("lanes", lanes, own.lanes),
        ("models", terms.models, own.terms.models),
        ("regions", terms.regions, own.terms.regions),
    ):
        if allowed is not None and (requested is None or not set(requested) <= set(allowed)):
            yield field, f"{', '.join(sorted(allowed))} alone"
    if PRIVACY_RANK[terms.privacy] < PRIVACY_RANK[own.terms.privacy]:
        yield "privacy", f"no less private label than {own.terms.privacy}"
    if terms.priority < own.terms.priority:
        yield "priority", f"no smaller number than {own.terms.priority}"
    ends_ns = own.terms.expires_ns
    if ends_ns is not None and (terms.expires_ns is None or terms.expires_ns > ends_ns):
        yield "expires_in_s", "no later expiry than its own"
