"""The cluster lane: one model's layers over several machines. It knows neither HTTP nor money."""
