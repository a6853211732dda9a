"""What buyers, sellers and houses share: their identity, their way to strangers, and what the market says."""
