"""Access to the selling pages; the settings that the agent would read if it started now, and its command."""

import asyncio
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends

from accounting.money import format_usd
from gateway.admin.selling import checked
from gateway.admin.settings_file import SettingsFile
from gateway.app_state import Marketplace, OptionalMarketplace, OptionalPayments, Settings, bundle
from gateway.console.access import Viewer, Visitor
from gateway.console.forms import sentence
from gateway.errors import RoleForbids
from gateway.settings import read_settings
from market.settings.seller import SellingSettings
from runtime.errors import NotFound
from runtime.settings import SettingsInvalid

PATH = "/console/selling"


async def _seller(visitor: Viewer) -> Visitor:
    if visitor.standings.isdisjoint(("seller", "operator")):
        role = visitor.caller.role
        raise RoleForbids(f"Only sellers and instance admins can do this; your role is {role}.")
    return visitor


Seller = Annotated[Visitor, Depends(_seller)]
"""A seller of this marketplace or an instance admin. Also raises RoleForbids."""


@dataclass(frozen=True, slots=True)
class _AccountSources:
    settings: Settings
    marketplace: OptionalMarketplace
    payments_service: OptionalPayments


Sources = Annotated[_AccountSources, bundle(_AccountSources)]
"""What is known here of a seller's account: the settings, and the marketplace and payments if there are any."""


def here(remedy: str) -> Any:
    """Return the dependency on this gateway's marketplace. Raises NotFound with the remedy if there is none."""

    async def find(marketplace: OptionalMarketplace) -> Marketplace:
        if marketplace is None:
            raise NotFound(f"This gateway is not a marketplace. {remedy}")
        return marketplace

    return Depends(find)


def price(amount_nano: int) -> str:
    """Format dollars with all digits: a price per million tokens must not be rounded."""
    return f"${format_usd(amount_nano)}"


async def settings_now(settings: Settings) -> SellingSettings:
    """Return the settings as the agent would read them; if they cannot be read, those of this gateway."""
    try:
        return (await asyncio.to_thread(read_settings, data_dir=settings.data_dir)).selling
    except SettingsInvalid:
        return settings.selling


def settings_problem(data_dir: Path) -> str:
    """Return why the agent would not start or would deviate from the file; empty if there is no problem."""
    try:
        section, now = SettingsFile.of(data_dir).section(), read_settings(data_dir=data_dir).selling
    except SettingsInvalid as error:
        return sentence(f"the agent would not start: {error}")
    written, _ = checked(section)
    other = [name for name in section if written is not None and getattr(written, name) != getattr(now, name)]
    if other:
        return f"Environment variables MILLRACE_SELLING__* override the file for: {', '.join(other)}."
    return ""


def command_of(data_dir: Path) -> str:
    return f"millrace sell --data-dir {shlex.quote(str(data_dir))}"
