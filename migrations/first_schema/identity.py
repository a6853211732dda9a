"""Organizations, users, API keys, passwords, console sessions, limits, and the audit log of admin actions."""

import time

import sqlalchemy as sa
from alembic import op

from migrations.first_schema.columns import BIG, integer, text, texts, wide


def create() -> None:
    _create_users()
    _create_keys()
    _create_sessions()
    op.create_table(
        "quota",
        *(text(name, key=True) for name in ("scope", "measure", "span", "model")),
        wide("amount"),
    )
    op.create_table(
        "audit_entry",
        sa.Column("seq", BIG, primary_key=True),
        wide("at_ns"),
        *texts("actor", "address", "action", "target", "organization_id"),
        *texts("before", "after", optional=True),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_entry_target", "audit_entry", ["target", "seq"])
    op.create_index("audit_entry_organization", "audit_entry", ["organization_id", "seq"])


def _create_users() -> None:
    """Create the home organization and the owner with them: the gateway's first admin."""
    organization = op.create_table(
        "organization",
        text("organization_id", key=True),
        text("name"),
        wide("created_ns"),
        sa.UniqueConstraint("name", name="organization_name"),
    )
    users = op.create_table(
        "users",
        text("user_id", key=True),
        sa.Column("organization_id", sa.Text, sa.ForeignKey("organization.organization_id"), nullable=False),
        text("name"),
        text("email", optional=True),
        text("role"),
        *texts("issuer", "subject", optional=True),
        wide("created_ns"),
        wide("removed_ns", optional=True),
        sa.UniqueConstraint("issuer", "subject", name="users_subject"),
    )
    op.create_index("users_organization", "users", ["organization_id"])
    awaits_sign_in = sa.text("subject IS NULL AND removed_ns IS NULL")
    op.create_index(
        "users_email",
        "users",
        ["email"],
        unique=True,
        sqlite_where=awaits_sign_in,
        postgresql_where=awaits_sign_in,
    )
    now_ns = time.time_ns()
    op.bulk_insert(organization, [{"organization_id": "home", "name": "home", "created_ns": now_ns}])
    owner = {"user_id": "owner", "organization_id": "home", "name": "owner", "role": "admin", "created_ns": now_ns}
    op.bulk_insert(users, [owner])


def _create_keys() -> None:
    op.create_table(
        "key_secret",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        text("fingerprint"),
    )
    op.create_table(
        "api_key",
        text("key_id", key=True),
        *texts("name", "prefix"),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        *texts("user_id", "department", "lanes"),
        wide("created_ns"),
        wide("revoked_ns", optional=True),
        *texts("models", "regions", optional=True),
        text("privacy", default="public"),
        integer("priority", default="0"),
        integer("has_admin_access", default="0"),
        wide("expires_ns", optional=True),
        text("previous_digest", optional=True),
        wide("previous_until_ns", optional=True),
        integer("is_preemptible", default="0"),
    )
    op.create_index("api_key_user", "api_key", ["user_id"])
    op.create_index("api_key_previous", "api_key", ["previous_digest"], unique=True)


def _create_sessions() -> None:
    op.create_table(
        "console_session",
        text("digest", key=True),
        text("user_id"),
        text("key_id", optional=True),
        wide("created_ns"),
        wide("expires_ns"),
        wide("revoked_ns", optional=True),
        text("address", default=""),
        text("browser", default=""),
    )
    op.create_index("console_session_user", "console_session", ["user_id"])
    op.create_index("console_session_expires", "console_session", ["expires_ns"])
    op.create_table(
        "user_password",
        sa.Column("user_id", sa.Text, sa.ForeignKey("users.user_id"), primary_key=True),
        text("hash"),
        wide("changed_ns"),
    )
    op.create_table(
        "password_link",
        text("digest", key=True),
        sa.Column("user_id", sa.Text, sa.ForeignKey("users.user_id"), nullable=False),
        integer("is_first"),
        wide("expires_ns"),
    )
