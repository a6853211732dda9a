"""The agent on each machine: its connection, its children, its files and its measurements."""
