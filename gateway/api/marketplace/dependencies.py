"""Dependencies of a house's routes."""

from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Request

from gateway.services import Services
from market.errors import RecordInvalid
from market.marketplace.marketplace import House
from market.protocol.records.envelope import Record, open_record
from runtime.errors import RequestInvalid

Facts: TypeAlias = dict[str, Any]


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def _house(request: Request) -> House:
    house = _services(request).house
    assert house is not None, "the routes are there where a house is"
    return house


def read_record(raw: str, param: str) -> Record:
    """Return a signed record. Raises RequestInvalid."""
    try:
        return open_record(raw.encode())
    except RecordInvalid as error:
        raise RequestInvalid(f"{param}: {error}", param=param, code="record_invalid") from None


Open = Annotated[House, Depends(_house)]
Shared = Annotated[Services, Depends(_services)]
