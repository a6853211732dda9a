"""The seller: `millrace sell`, a process beside the gateway that offers capacity its machines do not need."""
