"""Problems that an operator must fix: of the data directory, and of the cloud's keys and worker."""

from gateway.lanes.base import Lanes
from gateway.lanes.cloud.lane import CloudLane
from gateway.storage import Storage


def troubles_of(storage: Storage, lanes: Lanes) -> list[str]:
    """Return the problems in words, that of the data directory first."""
    cloud = lanes.get("cloud")
    found = cloud.troubles() if isinstance(cloud, CloudLane) else []
    return [storage.trouble, *found] if storage.trouble else found
