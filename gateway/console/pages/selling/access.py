"""Access to the selling pages; the settings that the agent would read if it started now, and its command."""

import asyncio
import shlex
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends

from accounting.money import format_usd
from gateway.admin.idle import Idle, IdleWatch
from gateway.admin.selling import checked
from gateway.admin.settings_file import SettingsFile
from gateway.console.access import Viewer, Visitor
from gateway.console.forms import sentence
from gateway.errors import RoleForbids
from gateway.settings import read_settings
from market.settings.seller import SellingSettings
from runtime.errors import NotFound
from runtime.settings import SettingsInvalid

if TYPE_CHECKING:
    from market.marketplace.marketplace import Marketplace

PATH = "/console/selling"


async def _seller(visitor: Viewer) -> Visitor:
    if visitor.standings.isdisjoint(("seller", "operator")):
        role = visitor.caller.role
        raise RoleForbids(f"Only sellers and instance admins can do this; your role is {role}.")
    return visitor


Seller = Annotated[Visitor, Depends(_seller)]
"""A seller of this marketplace or an instance admin. Also raises RoleForbids."""


async def idle_now(visitor: Visitor) -> Idle:
    """Return how idle the gateway is, as reported to the agent."""
    watch: IdleWatch = visitor.request.app.state.idle
    return await watch.state()


def marketplace_of(visitor: Visitor, remedy: str) -> "Marketplace":
    """Return the marketplace that this gateway operates. Raises NotFound with the remedy."""
    if visitor.services.marketplace is None:
        raise NotFound(f"This gateway is not a marketplace. {remedy}")
    return visitor.services.marketplace


def price(amount_nano: int) -> str:
    """Format dollars with all digits: a price per million tokens must not be rounded."""
    return f"${format_usd(amount_nano)}"


async def settings_now(visitor: Visitor) -> SellingSettings:
    """Return the settings as the agent would read them; if they cannot be read, those of this gateway."""
    settings = visitor.services.settings
    try:
        return (await asyncio.to_thread(read_settings, data_dir=settings.data_dir)).selling
    except SettingsInvalid:
        return settings.selling


def settings_problem(visitor: Visitor) -> str:
    """Return why the agent would not start or would deviate from the file; empty if there is no problem."""
    data_dir = visitor.services.settings.data_dir
    try:
        section, now = SettingsFile.of(data_dir).section(), read_settings(data_dir=data_dir).selling
    except SettingsInvalid as error:
        return sentence(f"the agent would not start: {error}")
    written, _ = checked(section)
    other = [name for name in section if written is not None and getattr(written, name) != getattr(now, name)]
    if other:
        return f"Environment variables MILLRACE_SELLING__* override the file for: {', '.join(other)}."
    return ""


def file_of(visitor: Visitor) -> SettingsFile:
    return SettingsFile.of(visitor.services.settings.data_dir)


def command_of(visitor: Visitor) -> str:
    return f"millrace sell --data-dir {shlex.quote(str(visitor.services.settings.data_dir))}"
