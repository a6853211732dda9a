"""Running sums of usage by key, user, department and organization per day, kept by a trigger on usage rows."""

# The values that one usage row adds, in SQL that both databases accept.
_FACTS = """
  {row}started_ns / 86400000000000 AS day, {row}model AS model, COALESCE({row}served_model, '') AS served_model,
  CASE WHEN {row}outcome = 'complete' OR {row}completion_tokens > 0 THEN 1 ELSE 0 END AS requests,
  CASE WHEN {row}lane = 'cache' THEN 0 ELSE {row}prompt_tokens + {row}completion_tokens END AS tokens,
  {row}charge_nano AS spend_nano
"""

# Sums by key, user, department and day, before they are split by scope.
_GROUPED = """
  SELECT key_id, user_id, department, day, model, served_model,
    SUM(requests) AS requests, SUM(tokens) AS tokens, SUM(spend_nano) AS spend_nano
  FROM (SELECT key_id, user_id, department, {facts} FROM {rows}) AS facts
  WHERE requests > 0 OR tokens > 0 OR spend_nano > 0
  GROUP BY key_id, user_id, department, day, model, served_model
"""
_ADDED = _GROUPED.format(facts=_FACTS.format(row=""), rows="added")


def _summed(grouped: str) -> str:
    scopes = (
        "SELECT 'key:' || key_id AS scope, used.* FROM used WHERE key_id <> ''",
        "SELECT 'user:' || user_id, used.* FROM used",
        "SELECT 'team:' || organization_id || '/' || department, used.* FROM used JOIN home ON home.id = user_id",
        "SELECT 'organization:' || organization_id, used.* FROM used JOIN home ON home.id = user_id",
    )
    return f"""
    WITH used AS ({grouped}), home AS (SELECT user_id AS id, organization_id FROM users)
    SELECT scope, day, model, served_model, SUM(requests), SUM(tokens), SUM(spend_nano)
    FROM ({" UNION ALL ".join(scopes)}) AS scoped
    GROUP BY scope, day, model, served_model
    """  # noqa: S608  own names


SQLITE_TRIGGER = f"""
CREATE TRIGGER usage_summed AFTER INSERT ON usage BEGIN
  INSERT INTO usage_sum (scope, day, model, served_model, requests, tokens, spend_nano)
  SELECT scope, facts.* FROM (
      SELECT 'key:' || NEW.key_id AS scope WHERE NEW.key_id <> ''
      UNION ALL SELECT 'user:' || NEW.user_id
      UNION ALL SELECT 'team:' || organization_id || '/' || NEW.department FROM users WHERE user_id = NEW.user_id
      UNION ALL SELECT 'organization:' || organization_id FROM users WHERE user_id = NEW.user_id
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
    """,
    """
    CREATE TRIGGER usage_summed AFTER INSERT ON usage REFERENCING NEW TABLE AS added
      FOR EACH STATEMENT EXECUTE FUNCTION usage_summed()
    """,
)
