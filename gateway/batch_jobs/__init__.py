"""Batches at work: jobs are chosen, their lines sent as requests, their outputs written."""
