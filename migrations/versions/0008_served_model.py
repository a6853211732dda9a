"""Store the model that answered if it is not the requested one. Older rows do not have it."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("usage", "request_record"):
        op.add_column(table, sa.Column("served_model", sa.Text, nullable=True))


def downgrade() -> None:
    raise NotImplementedError("books cannot be downgraded: restore the backup taken before the upgrade")
