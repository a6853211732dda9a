"""Alerts: each problem once, with its remedy, the worst first, else nothing."""

from dataclasses import replace

import pytest

from gateway.billing.inspection import Condition
from gateway.console.figures import alerts
from gateway.console.figures.alerts import BEHIND_MAX, Alert
from gateway.console.figures.layout import sketch
from gateway.lanes.preemptible.agent import AgentWord
from gateway.routing.pauses import Pause
from market.seller.states import SELLING, UNREACHED
from tests.console.topologies import CARD, household
from tests.gateway.routing.offers import CLOUD, CLUSTER, POOL

WELL = Condition(is_reachable=True, broken=(), seen_s=0.0)
USD = 10**9


def test_each_warning_of_the_cluster_comes_once_with_its_remedy() -> None:
    picture = sketch(household(), CARD).picture
    found = alerts.of_cluster("ready", "", picture, {})
    warned = [warning for tank in picture.tanks for warning in tank.warnings]
    assert warned
    for warning in warned:
        assert [alert.remedy.lower() for alert in found if warning.what in alert.what] == [warning.remedy.lower()]
    assert len({alert.what for alert in found}) == len(found)
    assert all(alert.href for alert in found)
    (absent, *others) = alerts.of_cluster("ready", "", picture, {"node-1": "ended (killed by signal 9)"})
    assert (absent.tone, absent.what, others) == ("bad", "node-1 ended (killed by signal 9)", found)
    failed = alerts.of_cluster("failed", "no room", picture, {})
    assert failed[0].tone == "bad"
    assert "no room" in failed[0].what


def test_backends_that_are_down_are_told_once_and_those_that_rest_are_not() -> None:
    down = replace(POOL, state="down", note="refused the connection")
    (alert,) = alerts.of_lanes([down, replace(down, model="other"), CLOUD, replace(CLUSTER, state="draining")])
    assert "pool:desk" in alert.what
    assert "refused the connection" in alert.what


@pytest.mark.parametrize(
    ("condition", "waiting", "is_behind", "trouble", "words"),
    [
        (WELL, 0, False, None, []),
        (WELL, 5, True, None, []),
        (WELL, 0, True, None, ["on disk"]),
        (WELL, BEHIND_MAX + 1, True, None, ["behind"]),
        (WELL, 0, False, "no key", ["block"]),
        (Condition(True, ("sums",), 0.0), 0, False, None, ["sums"]),
        (Condition(False, (), 0.0), 0, True, "no key", ["does not answer"]),
    ],
)
def test_the_ledger_says_what_is_wrong_with_it(
    condition: Condition, waiting: int, is_behind: bool, trouble: str | None, words: list[str]
) -> None:
    found = alerts.of_ledger(condition, waiting, is_behind=is_behind, trouble=trouble)
    assert len(found) == len(words)
    for alert, word in zip(found, words, strict=True):
        assert word in alert.what
        assert alert.remedy


@pytest.mark.parametrize(
    ("available", "week", "is_told"),
    [
        (0, 0, False),
        (100 * USD, 7 * USD, False),
        (3 * USD, 7 * USD, False),
        (2 * USD, 7 * USD, True),
        (0, 1, True),
    ],
)
def test_credits_are_low_where_they_do_not_last_three_days(available: int, week: int, is_told: bool) -> None:
    assert bool(alerts.of_credit(available, week, None)) is is_told
    (frozen,) = alerts.of_credit(available, week, "a bank asks for its money back")
    assert "a bank asks" in frozen.what


@pytest.mark.parametrize(
    ("agent", "word"),
    [
        (None, ""),
        (AgentWord(SELLING, 900), ""),
        (AgentWord("own_requests", 900), ""),
        (AgentWord(UNREACHED, 900), "tunnel"),
        (AgentWord(SELLING, 100), "stopped responding"),
        (AgentWord("the gateway has none of the models that are sold", 900), "none of the models"),
    ],
)
def test_an_agent_that_cannot_sell_is_told_of(agent: AgentWord | None, word: str) -> None:
    found = alerts.of_selling(agent, 1000.0)
    assert bool(found) is bool(word)
    assert all(word in alert.what and alert.remedy for alert in found)


def test_the_worst_come_first_and_the_rest_is_counted() -> None:
    given = [*alerts.of_pauses([Pause("cloud", 1, "user:ann")]), Alert("warn", "w", "r"), Alert("bad", "b", "r")]
    shown, more = alerts.most_urgent(given, 2)
    assert ([alert.tone for alert in shown], more) == (["bad", "warn"], 1)
    assert "ann" in given[0].what
    assert alerts.most_urgent(given, 9)[1] == 0
