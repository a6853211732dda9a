"""Running sums of the usage of keys, users, teams and organizations, from which limits start."""

from sqlalchemy import BigInteger, Integer, Text
from sqlmodel import Field, SQLModel

_COUNTED = BigInteger().with_variant(Integer(), "sqlite")


class UsageSum(SQLModel, table=True):
    """The usage of one scope's requests that began on one UTC day, for each pair of models.

    A trigger on usage rows adds to it (migrations/first_schema/usage_sums.py), so that the sums change in the
    transaction that books a request, whichever process books it. `scope` is a limit's (`gateway.quota`); `model`
    is the requested model, `served_model` the one that answered under another name, or empty. `requests` counts
    requests with a result, `tokens` excludes answers from the cache.
    """

    __tablename__ = "usage_sum"
    __table_args__ = ({"sqlite_strict": True, "sqlite_with_rowid": False},)

    scope: str = Field(primary_key=True, sa_type=Text)
    day: int = Field(primary_key=True, sa_type=_COUNTED, sa_column_kwargs={"autoincrement": False})
    """Days since 1970-01-01."""
    model: str = Field(primary_key=True, sa_type=Text)
    served_model: str = Field(primary_key=True, sa_type=Text)
    requests: int = Field(sa_type=_COUNTED)
    tokens: int = Field(sa_type=_COUNTED)
    spend_nano: int = Field(sa_type=_COUNTED)


usage_sum_table = SQLModel.metadata.tables["usage_sum"]
