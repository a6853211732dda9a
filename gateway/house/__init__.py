"""The house: who puts credits aside for sellers, settles what was promised, and pays it out."""
