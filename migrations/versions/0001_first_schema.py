"""Create every table of the first version, and the triggers that protect the ledger and the audit log."""

from alembic import op

from migrations.first_schema import (
    coordination,
    identity,
    ledger,
    marketplace,
    payments,
    postgresql_triggers,
    requests,
    sqlite_triggers,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    for area in (ledger, identity, requests, payments, marketplace, coordination):
        area.create()
    triggers = sqlite_triggers if op.get_bind().dialect.name == "sqlite" else postgresql_triggers
    triggers.create()


def downgrade() -> None:
    raise NotImplementedError("a ledger cannot be downgraded: restore the backup taken before the upgrade")
