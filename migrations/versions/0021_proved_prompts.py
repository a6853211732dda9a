"""Store the proved token counts of disputed prompts, by the side that proved them."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("house_dispute", sa.Column("buyer_prompt_tokens", BIG, nullable=True))
    op.add_column("house_dispute", sa.Column("seller_prompt_tokens", BIG, nullable=True))


def downgrade() -> None:
    op.drop_column("house_dispute", "seller_prompt_tokens")
    op.drop_column("house_dispute", "buyer_prompt_tokens")
