"""The code that runs on nodes: the loops of the head and of a stage, and the decisions they take for each step."""
