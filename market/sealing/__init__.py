"""Bodies that only buyer and seller can read, whoever carries them."""
