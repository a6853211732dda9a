"""What lives as long as the process, built once and handed to whoever needs it."""

from dataclasses import dataclass

from cluster.controller import Controller
from gateway.admission import Admission
from gateway.bookkeeping import Bookkeeper
from gateway.books import Books
from gateway.identity.keys import Keys
from gateway.lane_health import LaneHealth
from gateway.lanes.base import Lane
from gateway.observability import Metrics
from gateway.request_log import RequestLog
from gateway.settings import LaneName, Settings


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    metrics: Metrics
    keys: Keys
    books: Books
    request_log: RequestLog
    bookkeeper: Bookkeeper
    admission: Admission
    health: LaneHealth
    lanes: dict[LaneName, Lane]
    controller: Controller
    admin_token: str
