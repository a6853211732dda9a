"""Who looks after sellers: what evidence there is of what they run, what it says, and what follows. Pure."""
