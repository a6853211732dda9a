"""The gateway: one OpenAI base URL, and the composition of all lanes, books and pages behind it."""
