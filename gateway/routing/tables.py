"""The table of pauses that operators set at run time."""

from sqlalchemy import BigInteger, Text
from sqlmodel import Field, SQLModel


class PauseRow(SQLModel, table=True):
    """A switch that is paused until its row is deleted. `actor` is the user who paused it."""

    __tablename__ = "pause"

    name: str = Field(primary_key=True, sa_type=Text)
    since_ns: int = Field(sa_type=BigInteger)
    actor: str = Field(sa_type=Text)


pause_table = SQLModel.metadata.tables["pause"]
