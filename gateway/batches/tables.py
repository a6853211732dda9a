"""Files and batches, one row each. Times are nanoseconds since the epoch.

`folder_id` is the data directory that has the content: several gateways may share these tables, but not a disk.
"""

from sqlalchemy import BigInteger, Index, Integer, Text
from sqlmodel import Field, SQLModel


class FileRow(SQLModel, table=True):
    """A stored file; only its `owner` can find it."""

    __tablename__ = "stored_file"
    __table_args__ = (
        Index("stored_file_owner", "owner", "created_ns"),
        Index("stored_file_expires", "expires_ns"),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    owner: str = Field(sa_type=Text)
    folder_id: str = Field(sa_type=Text)
    filename: str = Field(sa_type=Text)
    purpose: str = Field(sa_type=Text)
    size_bytes: int = Field(sa_type=BigInteger)
    created_ns: int = Field(sa_type=BigInteger)
    expires_ns: int = Field(sa_type=BigInteger)


class BatchRow(SQLModel, table=True):
    """A batch.

    `annotations` and `errors` are JSON. The ids of both output files are fixed when the batch is created.
    """

    __tablename__ = "batch"
    __table_args__ = (
        Index("batch_owner", "owner", "created_ns"),
        Index("batch_status", "status", "folder_id"),
        Index("batch_input", "input_file_id"),
    )

    id: str = Field(primary_key=True, sa_type=Text)
    owner: str = Field(sa_type=Text)
    folder_id: str = Field(sa_type=Text)
    key_id: str = Field(sa_type=Text)
    endpoint: str = Field(sa_type=Text)
    input_file_id: str = Field(sa_type=Text)
    status: str = Field(sa_type=Text)
    created_ns: int = Field(sa_type=BigInteger)
    expires_ns: int = Field(sa_type=BigInteger)
    annotations: str | None = Field(default=None, sa_type=Text)
    output_lifetime_s: int | None = Field(default=None, sa_type=Integer)
    model: str | None = Field(default=None, sa_type=Text)
    total: int = Field(default=0, sa_type=Integer)
    completed: int = Field(default=0, sa_type=Integer)
    failed: int = Field(default=0, sa_type=Integer)
    errors: str | None = Field(default=None, sa_type=Text)
    in_progress_ns: int | None = Field(default=None, sa_type=BigInteger)
    finalizing_ns: int | None = Field(default=None, sa_type=BigInteger)
    completed_ns: int | None = Field(default=None, sa_type=BigInteger)
    failed_ns: int | None = Field(default=None, sa_type=BigInteger)
    expired_ns: int | None = Field(default=None, sa_type=BigInteger)
    cancelling_ns: int | None = Field(default=None, sa_type=BigInteger)
    cancelled_ns: int | None = Field(default=None, sa_type=BigInteger)


file_table = SQLModel.metadata.tables["stored_file"]
batch_table = SQLModel.metadata.tables["batch"]
