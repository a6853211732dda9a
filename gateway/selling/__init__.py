"""The seller: `millrace sell`, a process beside the gateway that offers what its machines do not need."""
