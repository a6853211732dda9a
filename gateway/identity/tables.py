"""Tables of organizations, users, keys, passwords, sessions, limits, and the audit log of their changes.

Times are nanoseconds since the epoch. A list is stored as JSON text; NULL means all.
"""

from sqlalchemy import BigInteger, Index, Integer, Text, UniqueConstraint, text
from sqlmodel import Field, SQLModel

# SQLite auto-increments only columns of type INTEGER.
_COUNTED = BigInteger().with_variant(Integer(), "sqlite")


class Organization(SQLModel, table=True):
    """Users who share limits. `home` is the organization whose admins run the gateway."""

    __table_args__ = (UniqueConstraint("name", name="organization_name"),)

    organization_id: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    created_ns: int = Field(sa_type=BigInteger)


_AWAITS_SIGN_IN = text("subject IS NULL AND removed_ns IS NULL")


class UserRow(SQLModel, table=True):
    """`user_id` is the user's ledger account and never changes; a removed user keeps the row.

    `issuer` and `subject` identify a user who has signed in through an identity provider. Until then
    the address identifies them, so no two users who wait to sign in have the same.
    """

    # PostgreSQL reserves the word `user`.
    __tablename__ = "users"
    __table_args__ = (
        UniqueConstraint("issuer", "subject", name="users_subject"),
        Index("users_organization", "organization_id"),
        Index("users_email", "email", unique=True, sqlite_where=_AWAITS_SIGN_IN),
    )

    user_id: str = Field(primary_key=True, sa_type=Text)
    organization_id: str = Field(sa_type=Text, foreign_key="organization.organization_id")
    name: str = Field(sa_type=Text)
    email: str | None = Field(default=None, sa_type=Text)
    role: str = Field(sa_type=Text)
    issuer: str | None = Field(default=None, sa_type=Text)
    subject: str | None = Field(default=None, sa_type=Text)
    created_ns: int = Field(sa_type=BigInteger)
    removed_ns: int | None = Field(default=None, sa_type=BigInteger)


class KeySecret(SQLModel, table=True):
    """One row: the fingerprint of the secret that keys are hashed with. The secret itself is not stored."""

    __tablename__ = "key_secret"

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    fingerprint: str = Field(sa_type=Text)


class ApiKey(SQLModel, table=True):
    """`digest` is a keyed hash; the key itself is not stored. `lanes` is a comma-separated list.

    After a rotation `previous_digest` is valid until `previous_until_ns`, under the same id and limits.
    """

    __tablename__ = "api_key"
    __table_args__ = (Index("api_key_user", "user_id"), Index("api_key_previous", "previous_digest", unique=True))

    key_id: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(sa_type=Text)
    prefix: str = Field(sa_type=Text)
    digest: str = Field(sa_type=Text, unique=True)
    user_id: str = Field(sa_type=Text)
    department: str = Field(sa_type=Text)
    lanes: str = Field(sa_type=Text)
    created_ns: int = Field(sa_type=BigInteger)
    revoked_ns: int | None = Field(default=None, sa_type=BigInteger)
    models: str | None = Field(default=None, sa_type=Text)
    regions: str | None = Field(default=None, sa_type=Text)
    privacy: str = Field(default="public", sa_type=Text)
    priority: int = Field(default=0, sa_type=Integer)
    has_admin_access: int = Field(default=0, sa_type=Integer)
    expires_ns: int | None = Field(default=None, sa_type=BigInteger)
    previous_digest: str | None = Field(default=None, sa_type=Text)
    previous_until_ns: int | None = Field(default=None, sa_type=BigInteger)
    is_preemptible: int = Field(default=0, sa_type=Integer)


class QuotaRow(SQLModel, table=True):
    """One limit, as `gateway.quota.Quota`; `span` or `model` is empty instead of NULL, as both are in the key."""

    __tablename__ = "quota"

    scope: str = Field(primary_key=True, sa_type=Text)
    measure: str = Field(primary_key=True, sa_type=Text)
    span: str = Field(primary_key=True, sa_type=Text)
    model: str = Field(primary_key=True, sa_type=Text)
    amount: int = Field(sa_type=BigInteger)


class ConsoleSession(SQLModel, table=True):
    """One signed-in browser, by the hash of its cookie value; `key_id` is set if a key opened the session."""

    __tablename__ = "console_session"
    __table_args__ = (Index("console_session_user", "user_id"), Index("console_session_expires", "expires_ns"))

    digest: str = Field(primary_key=True, sa_type=Text)
    user_id: str = Field(sa_type=Text)
    key_id: str | None = Field(default=None, sa_type=Text)
    created_ns: int = Field(sa_type=BigInteger)
    expires_ns: int = Field(sa_type=BigInteger)
    revoked_ns: int | None = Field(default=None, sa_type=BigInteger)
    address: str = Field(default="", sa_type=Text)
    browser: str = Field(default="", sa_type=Text)


class PasswordRow(SQLModel, table=True):
    """A user's password, as `gateway.identity.password_hash` stores it."""

    __tablename__ = "user_password"

    user_id: str = Field(primary_key=True, sa_type=Text, foreign_key="users.user_id")
    hash: str = Field(sa_type=Text)
    changed_ns: int = Field(sa_type=BigInteger)


class PasswordLink(SQLModel, table=True):
    """A one-time link for choosing a password; it is deleted when used. `is_first` is 0 or 1."""

    __tablename__ = "password_link"

    digest: str = Field(primary_key=True, sa_type=Text)
    user_id: str = Field(sa_type=Text, foreign_key="users.user_id")
    is_first: int = Field(sa_type=Integer)
    expires_ns: int = Field(sa_type=BigInteger)


class AuditEntry(SQLModel, table=True):
    """One admin action, written in the transaction that did it. Triggers prevent changes to it."""

    __tablename__ = "audit_entry"
    __table_args__ = (
        Index("audit_entry_target", "target", "seq"),
        Index("audit_entry_organization", "organization_id", "seq"),
        {"sqlite_autoincrement": True},
    )

    seq: int | None = Field(default=None, primary_key=True, sa_type=_COUNTED)
    at_ns: int = Field(sa_type=BigInteger)
    actor: str = Field(sa_type=Text)
    address: str = Field(sa_type=Text)
    action: str = Field(sa_type=Text)
    target: str = Field(sa_type=Text)
    organization_id: str = Field(sa_type=Text)
    before: str | None = Field(default=None, sa_type=Text)
    after: str | None = Field(default=None, sa_type=Text)


organization_table = SQLModel.metadata.tables["organization"]
user_table = SQLModel.metadata.tables["users"]
api_key_table = SQLModel.metadata.tables["api_key"]
quota_table = SQLModel.metadata.tables["quota"]
session_table = SQLModel.metadata.tables["console_session"]
password_table = SQLModel.metadata.tables["user_password"]
password_link_table = SQLModel.metadata.tables["password_link"]
audit_table = SQLModel.metadata.tables["audit_entry"]
key_secret_table = SQLModel.metadata.tables["key_secret"]
