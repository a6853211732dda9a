"""The settings as the agent would read them if it were started now, and how it is started."""

import asyncio
import shlex

from gateway.console.access import Visitor
from gateway.console.pages.selling.asking import sentence
from gateway.console.pages.selling.settings_file import SettingsFile
from gateway.console.pages.selling.steps import checked
from gateway.settings import SellingSettings, SettingsInvalid, read_settings


async def settings_now(visitor: Visitor) -> SellingSettings:
    """As the agent would read them in this environment; where they cannot be read, as this gateway did."""
    settings = visitor.services.settings
    try:
        return (await asyncio.to_thread(read_settings, data_dir=settings.data_dir)).selling
    except SettingsInvalid:
        return settings.selling


def settings_problem(visitor: Visitor) -> str:
    """Why the agent would not start, or where it would not do as the file says; empty where there is nothing."""
    data_dir = visitor.services.settings.data_dir
    try:
        section, now = SettingsFile.of(data_dir).section(), read_settings(data_dir=data_dir).selling
    except SettingsInvalid as error:
        return sentence(f"the agent would not start: {error}")
    written, _ = checked(section)
    other = [name for name in section if written is not None and getattr(written, name) != getattr(now, name)]
    if other:
        return f"Variables MILLRACE_SELLING__* go before the file for: {', '.join(other)}."
    return ""


def file_of(visitor: Visitor) -> SettingsFile:
    return SettingsFile.of(visitor.services.settings.data_dir)


def command_of(visitor: Visitor) -> str:
    return f"millrace sell --data-dir {shlex.quote(str(visitor.services.settings.data_dir))}"
