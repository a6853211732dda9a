"""Cluster: the machines that hold one model together, for instance admins."""

from fastapi import APIRouter

from gateway.console.pages.cluster import add_machine, machine, overview, plan_preview

router = APIRouter()
for _part in (overview, machine, plan_preview, add_machine):
    router.include_router(_part.router)
