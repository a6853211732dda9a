"""Audits of sellers among ordinary requests: what is asked, when, and what is remembered.

Modules:
    audit_client        An audit's request to one listing, through the buyer's process: sealed, vouched for and
                        paid like any other
    audit_target        An audit's target: a listing and what it claims to be
    auditor             Place audits among the ordinary requests to a listing, at the rate it deserves, and keep
                        their results
    canary_factory      Make canaries: prompts that one of our own machines with the model answers twice alike
    confirmation        Ask a trusted engine what a suspended seller failed: without that confirmation, no seller
                        loses money
    findings_publisher  Publish the findings of this gateway's audits under its own identity
    own_engine          Our own gateway as a trusted engine: asked as a preemptible request, which only our own
                        machines serve
    probe_store         audits.db: the probes, the state of each listing, and every audit of the last two weeks
    probes              Requests for audits, drawn from what was frozen for the model's weights
    prompts             Questions for canaries if the owner gives none: too many for a seller to know all their
                        answers
"""
