"""What we measure, one command each."""
