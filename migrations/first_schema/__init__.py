"""The first schema, in one module per area. A later change of a table is a migration of its own."""
