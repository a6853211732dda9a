"""How models write calls of tools: taken apart as they come, and as grammars that let nothing else through."""
