"""Create organizations, people, roles, limits, console sessions, and the audit log of admin actions."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# SQLite numbers rows automatically only in columns of type INTEGER.
COUNTED = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_people()
    _extend_keys()
    _create_rest()
    _move_in(time.time_ns())
    statements = SQLITE_TRIGGERS if op.get_bind().dialect.name == "sqlite" else POSTGRESQL_TRIGGERS
    for statement in statements:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("an audit log cannot be downgraded: restore the backup taken before the upgrade")


def _create_people() -> None:
    op.create_table(
        "organization",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("name", name="organization_name"),
    )
    op.create_table(
        "person",
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column(
            "organization_id", sa.Text, sa.ForeignKey("organization.organization_id"), nullable=False
        ),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("email", sa.Text),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("issuer", sa.Text),
        sa.Column("subject", sa.Text),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.Column("removed_ns", sa.BigInteger),
        sa.UniqueConstraint("issuer", "subject", name="person_subject"),
    )
    op.create_index("person_organization", "person", ["organization_id"])
    awaits_sign_in = sa.text("subject IS NULL AND removed_ns IS NULL")
    op.create_index(
        "person_email",
        "person",
        ["email"],
        unique=True,
        sqlite_where=awaits_sign_in,
        postgresql_where=awaits_sign_in,
    )


def _extend_keys() -> None:
    for column in (
        sa.Column("models", sa.Text),
        sa.Column("regions", sa.Text),
        sa.Column("privacy", sa.Text, nullable=False, server_default="public"),
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("may_administer", sa.Integer, nullable=False, server_default="0"),
        sa.Column("expires_ns", sa.BigInteger),
        sa.Column("previous_digest", sa.Text),
        sa.Column("previous_until_ns", sa.BigInteger),
    ):
        op.add_column("api_key", column)
    op.create_index("api_key_user", "api_key", ["user_id"])
    op.create_index("api_key_previous", "api_key", ["previous_digest"], unique=True)


def _create_rest() -> None:
    op.create_table(
        "quota",
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("scope", "measure", "span", "model")),
        sa.Column("amount", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "console_session",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.Column("expires_ns", sa.BigInteger, nullable=False),
        sa.Column("revoked_ns", sa.BigInteger),
    )
    op.create_index("console_session_user", "console_session", ["user_id"])
    op.create_index("console_session_expires", "console_session", ["expires_ns"])
    op.create_table(
        "audit_entry",
        sa.Column("seq", COUNTED, primary_key=True),
        sa.Column("at_ns", sa.BigInteger, nullable=False),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("actor", "address", "action", "target", "organization_id")
        ),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_entry_target", "audit_entry", ["target", "seq"])
    op.create_index("audit_entry_organization", "audit_entry", ["organization_id", "seq"])


def _move_in(now_ns: int) -> None:
    """Make every user with keys a person of the house, and the owner its admin."""
    connection = op.get_bind()
    values = {"now": now_ns}
    connection.execute(sa.text("INSERT INTO organization VALUES ('home', 'home', :now)"), values)
    person = "INSERT INTO person (user_id, organization_id, name, role, created_ns)"
    connection.execute(sa.text(f"{person} VALUES ('owner', 'home', 'owner', 'admin', :now)"), values)
    connection.execute(
        sa.text(
            f"{person} SELECT DISTINCT user_id, 'home', user_id, 'member', :now FROM api_key WHERE user_id <> 'owner'"
        ).bindparams(sa.bindparam("now", type_=sa.BigInteger)),
        values,
    )


# SQLite's INSERT OR REPLACE deletes a row without running the delete trigger, so the insert trigger checks first.
SQLITE_TRIGGERS = (
    """
    CREATE TRIGGER audit_entry_append BEFORE INSERT ON audit_entry BEGIN
      SELECT RAISE(ABORT, 'the audit log is append-only')
        WHERE EXISTS (SELECT 1 FROM audit_entry WHERE seq = NEW.seq);
    END
    """,
    *(
        f"""
        CREATE TRIGGER audit_entry_no_{action.lower()} BEFORE {action} ON audit_entry BEGIN
          SELECT RAISE(ABORT, 'the audit log is append-only');
        END
        """
        for action in ("UPDATE", "DELETE")
    ),
)
POSTGRESQL_TRIGGERS = (
    """
    CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'integrity_constraint_violation';
    END $$
    """,
    """
    CREATE TRIGGER audit_entry_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_entry
      FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()
    """,
)
