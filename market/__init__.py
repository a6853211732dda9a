"""Trade capacity of other people's machines: listings, matching, payment, encryption.

Knows accounting, no HTTP.
"""
