"""The agent on each machine: its connection, its children, its files, what it measures."""
