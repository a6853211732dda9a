"""Base classes of the sections of settings."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


class SettingsInvalid(Exception):
    """A setting is unknown or has a value that cannot be used; the message names it."""


def whole(path: Path) -> Path:
    """Return the absolute path that a shell would open, whatever folder the program changes to.

    Raises ValueError if `~` names a user without a home folder.
    """
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"{path}: {error}") from None


WholePath = Annotated[Path, AfterValidator(whole)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
