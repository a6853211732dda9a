"""Cluster: the machines that hold one model together, for instance admins.

Modules:
    add_machine   Adding a machine: a single-use command, the machine as it joins, and the link to the plan preview
    machine       One machine: its hardware and role, its links, and actions on it
    overview      The cluster as it is now: picture, plan, machines, links, events
    plan_preview  Preview of the plan if machines left or joined, beside the current plan; and applying it
    state         The state that the cluster's pages show, read from the controller at one moment
"""

from fastapi import APIRouter

from gateway.console.pages.cluster import add_machine, machine, overview, plan_preview

router = APIRouter()
for _part in (overview, machine, plan_preview, add_machine):
    router.include_router(_part.router)
