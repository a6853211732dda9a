"""Store submitted receipts of the disputed request, because the house keeps only the newest of a lane."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("house_dispute", sa.Column("receipts", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("house_dispute", "receipts")
