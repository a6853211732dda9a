"""Dependencies of a marketplace's routes."""

from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Request

from gateway.services import Services
from market.errors import RecordInvalid
from market.marketplace.marketplace import Marketplace
from market.protocol.records.envelope import Record, open_record
from runtime.errors import RequestInvalid

Facts: TypeAlias = dict[str, Any]


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def _marketplace(request: Request) -> Marketplace:
    marketplace = _services(request).marketplace
    assert marketplace is not None, "the routes are there where a marketplace is"
    return marketplace


def read_record(raw: str, param: str) -> Record:
    """Return a signed record. Raises RequestInvalid."""
    try:
        return open_record(raw.encode())
    except RecordInvalid as error:
        raise RequestInvalid(f"{param}: {error}", param=param, code="record_invalid") from None


Open = Annotated[Marketplace, Depends(_marketplace)]
Shared = Annotated[Services, Depends(_services)]
