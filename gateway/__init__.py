"""The gateway: one OpenAI base URL in front of all lanes, the ledger and the pages."""
