"""Run `make demo-market`: a marketplace, a seller and a buyer on one machine trade an answer, and their ledgers
agrees.
"""
