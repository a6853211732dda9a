"""Choose which of many third parties gets a request: pure, with reasons, and such that lying gains nothing."""
