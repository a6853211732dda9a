"""Keep running sums of usage by key, person, team and organization per day. Limits read them, not usage rows."""

import time
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0025"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DAY_NS = 86_400 * 10**9


def upgrade() -> None:
    op.create_table(
        "usage_sum",
        sa.Column("scope", sa.Text, primary_key=True, nullable=False),
        sa.Column("day", BIG, primary_key=True, autoincrement=False, nullable=False),
        sa.Column("model", sa.Text, primary_key=True, nullable=False),
        sa.Column("served_model", sa.Text, primary_key=True, nullable=False),
        *(sa.Column(name, BIG, nullable=False) for name in ("requests", "tokens", "spend_nano")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
        # The rows of the running day change with every transaction that books requests.
        postgresql_with={"fillfactor": 50},
    )
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        statements: tuple[str, ...] = (SQLITE_TRIGGER,)
    else:
        schema = connection.scalar(sa.text("SELECT quote_ident(current_schema())"))
        statements = tuple(statement.replace("<schema>", schema) for statement in POSTGRESQL_TRIGGERS)
    for statement in statements:
        op.execute(statement)
    # Creating the trigger locks usage rows first, so another gateway's bookings are summed here or by the trigger.
    connection.execute(sa.text(f"INSERT INTO usage_sum {_summed(_BOOKED)}"), {"since_ns": _last_month_ns()})  # noqa: S608  own names


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER usage_summed")
    else:
        op.execute("DROP TRIGGER usage_summed ON usage")
        op.execute("DROP FUNCTION usage_summed()")
    op.drop_table("usage_sum")


def _last_month_ns() -> int:
    """Return the start of the previous month. Limits need this month; an upgrade at its start may need the last one."""
    first = datetime.fromtimestamp(time.time(), UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    before = (first - timedelta(days=1)).replace(day=1)
    return int(before.timestamp()) * 10**9


# The values that one usage row adds, in SQL that both databases accept.
_FACTS = """
  {row}started_ns / 86400000000000 AS day, {row}model AS model, COALESCE({row}served_model, '') AS served_model,
  CASE WHEN {row}outcome = 'complete' OR {row}completion_tokens > 0 THEN 1 ELSE 0 END AS requests,
  CASE WHEN {row}lane = 'cache' THEN 0 ELSE {row}prompt_tokens + {row}completion_tokens END AS tokens,
  {row}charge_nano AS spend_nano
"""

# Sums by key, person, department and day, before they are split by scope.
_GROUPED = """
  SELECT key_id, user_id, department, day, model, served_model,
    SUM(requests) AS requests, SUM(tokens) AS tokens, SUM(spend_nano) AS spend_nano
  FROM (SELECT key_id, user_id, department, {facts} FROM {rows}) AS facts
  WHERE requests > 0 OR tokens > 0 OR spend_nano > 0
  GROUP BY key_id, user_id, department, day, model, served_model
"""
_BOOKED = _GROUPED.format(facts=_FACTS.format(row=""), rows="usage WHERE started_ns >= :since_ns")
_ADDED = _GROUPED.format(facts=_FACTS.format(row=""), rows="added")


def _summed(grouped: str) -> str:
    scopes = (
        "SELECT 'key:' || key_id AS scope, used.* FROM used WHERE key_id <> ''",
        "SELECT 'person:' || user_id, used.* FROM used",
        "SELECT 'team:' || organization_id || '/' || department, used.* FROM used JOIN home ON home.id = user_id",
        "SELECT 'organization:' || organization_id, used.* FROM used JOIN home ON home.id = user_id",
    )
    return f"""
    WITH used AS ({grouped}), home AS (SELECT user_id AS id, organization_id FROM person)
    SELECT scope, day, model, served_model, SUM(requests), SUM(tokens), SUM(spend_nano)
    FROM ({" UNION ALL ".join(scopes)}) AS scoped
    GROUP BY scope, day, model, served_model
    """  # noqa: S608  own names


SQLITE_TRIGGER = f"""
CREATE TRIGGER usage_summed AFTER INSERT ON usage BEGIN
  INSERT INTO usage_sum (scope, day, model, served_model, requests, tokens, spend_nano)
  SELECT scope, facts.* FROM (
      SELECT 'key:' || NEW.key_id AS scope WHERE NEW.key_id <> ''
      UNION ALL SELECT 'person:' || NEW.user_id
      UNION ALL SELECT 'team:' || organization_id || '/' || NEW.department FROM person WHERE user_id = NEW.user_id
      UNION ALL SELECT 'organization:' || organization_id FROM person WHERE user_id = NEW.user_id
    ), (SELECT {_FACTS.format(row="NEW.")}) AS facts
  WHERE requests > 0 OR tokens > 0 OR spend_nano > 0
  ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, tokens = tokens + excluded.tokens,
    spend_nano = spend_nano + excluded.spend_nano;
END
"""  # noqa: S608  own names

# Runs once per statement, whatever the number of rows.
POSTGRESQL_TRIGGERS = (
    f"""
    CREATE FUNCTION usage_summed() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, <schema>, pg_temp AS $$
    BEGIN
      INSERT INTO usage_sum AS sums (scope, day, model, served_model, requests, tokens, spend_nano)
      {_summed(_ADDED)}
      ON CONFLICT (scope, day, model, served_model) DO UPDATE SET requests = sums.requests + EXCLUDED.requests,
        tokens = sums.tokens + EXCLUDED.tokens, spend_nano = sums.spend_nano + EXCLUDED.spend_nano;
      RETURN NULL;
    END $$
    """,  # noqa: S608  own names
    """
    CREATE TRIGGER usage_summed AFTER INSERT ON usage REFERENCING NEW TABLE AS added
      FOR EACH STATEMENT EXECUTE FUNCTION usage_summed()
    """,
)
