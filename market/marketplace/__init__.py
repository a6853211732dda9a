"""The house: reserves credits for sellers, settles what was promised, and pays it out."""
