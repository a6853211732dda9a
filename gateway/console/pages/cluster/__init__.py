"""Cluster: the machines that hold one model together, for instance admins."""

from fastapi import APIRouter

from gateway.console.pages.cluster import joining, machine, overview, planning

router = APIRouter()
for _part in (overview, machine, planning, joining):
    router.include_router(_part.router)
