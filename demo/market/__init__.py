"""Run `make demo-market`: a house, a seller and a buyer on one machine trade an answer, and their books agree."""
