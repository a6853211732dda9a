"""The settings that the agent would read if it started now, and the command that starts it."""

import asyncio
import shlex

from gateway.admin.selling import checked
from gateway.admin.settings_file import SettingsFile
from gateway.console.access import Visitor
from gateway.console.forms import sentence
from gateway.settings import read_settings
from market.settings.seller import SellingSettings
from runtime.settings import SettingsInvalid


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
