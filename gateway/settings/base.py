"""The base classes and types of every settings section."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

LaneName = Literal["cluster", "pool", "cloud", "market"]

FOREIGN: frozenset[LaneName] = frozenset(("cloud", "market"))
"""Lanes that lead to other people's machines: what goes there is never private, and is paid for."""

Privacy = Literal["public", "internal", "private"]
"""How far a request may travel. `private`: own machines alone; `internal`: also providers under contract;
`public`: anywhere. A lane, a backend or a provider is cleared up to one of them."""

PRIVACY_RANK: dict[Privacy, int] = {"public": 0, "internal": 1, "private": 2}

Role = Literal["admin", "member", "seller"]


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
