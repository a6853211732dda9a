"""The cluster lane: one model's layers over several machines. Knows neither HTTP nor money."""
