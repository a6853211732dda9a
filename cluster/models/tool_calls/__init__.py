"""How models write tool calls: parsers for streamed text, and grammars that allow nothing else."""
