"""Preemptible requests: jobs from the market on capacity that this gateway does not need.

Modules:
    admission  Admission of preemptible requests: only to what the owner leaves idle
    agent      The last state reported by the selling agent beside this gateway, each time it queried the idle
               state
    jobs       The preemptible requests of this gateway: running ones, admission, and preemption when the owner's
               work arrives
    key        The key for preemptible requests: one for each gateway, replaced whenever the selling agent asks for it
    sensors    The machine's load and power, as its NVIDIA cards and batteries report them
    spare      The spare models of this gateway for preemptible requests, with the facts that a listing needs
"""
