"""The coordinator that the settings name, and what gateways tell each other through it."""
