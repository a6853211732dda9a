"""Which of many strangers gets a request: pure, with reasons, and nothing to be gained by lying about oneself."""
