"""Audits: what is right passes, what is odd is seen, and the bound on honest sellers caught by chance holds."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.protocol.audits.canaries import USES_MAX, Canary, failings, freeze, freeze_texts, is_retired
from market.protocol.audits.evidence import LASTS_MS, PASSED_MIN, digest_of, evidence_of, tier_found
from market.protocol.audits.logprobs import GreedyToken, greedy_tokens_of
from market.protocol.audits.rates import (
    ANOMALY_AUDITS,
    FAILURE_AUDITS,
    FIRST_RATE,
    FIRST_REQUESTS,
    FORCED_RATE,
    PROBATION_RATE,
    TRUSTED_RATE,
    Watched,
    audit_rate,
)
from market.protocol.audits.replay import outliers
from market.protocol.audits.sequential import ALPHA, FAILING_MAX, Kind, Stakes
from market.protocol.audits.verdicts import (
    FAILED_MIN,
    Audit,
    Case,
    after_anomaly,
    after_audit,
    after_confirmation,
    after_request,
    decide,
    new_case,
)
from market.protocol.listings.listing import Tier
from tests.market.parties import NOW_MS, id_of
from tests.market.trade import DIGEST

WORDS = "the mill grinds what the race brings to it".split()  # noqa: SIM905
REFERENCE = tuple(GreedyToken(f" {word}", margin=1.0 if n != 5 else 0.01) for n, word in enumerate(WORDS, 1))


def text_of(tokens: tuple[GreedyToken, ...]) -> str:
    return "".join(each.token for each in tokens)


def canary() -> Canary:
    frozen = freeze("What does a mill do?", [REFERENCE, REFERENCE])
    assert frozen is not None
    return frozen


def audit(kind: Kind = "canary", probe: str = "c1", *failed: str, made_ms: int = NOW_MS) -> Audit:
    return Audit(kind, probe, made_ms, DIGEST, failed)


def test_a_canary_knows_how_its_answer_begins() -> None:
    frozen = canary()
    assert frozen.opening == " the mill grinds what"
    assert not frozen.is_whole
    assert failings(frozen, text_of(REFERENCE)) == ()
    assert failings(frozen, text_of(REFERENCE).lstrip() + " and more") == ()
    # Where the model itself hardly knows, another word is no lie.
    assert failings(frozen, "the mill grinds what water brings") == ()
    assert failings(frozen, "I am only a small model") == ("the answer begins differently from the model's",)
    assert is_retired(USES_MAX, 0)
    assert is_retired(0, 3)
    assert not is_retired(3, 2)


def test_a_whole_answer_has_nothing_behind_it() -> None:
    frozen = freeze("What does a mill do?", [REFERENCE[:4], REFERENCE[:4]])
    assert frozen is not None
    assert frozen.is_whole
    assert failings(frozen, "the mill grinds what\n") == ()
    assert failings(frozen, "the mill grinds what\u200b") == ("the answer continues where the model's ends",)
    assert failings(frozen, "the mill") == ("the answer begins differently from the model's",)


def test_texts_alone_make_a_canary_too() -> None:
    frozen = freeze_texts("p", ["The mill grinds what comes.", " The mill grinds whatever comes."])
    assert frozen is not None
    assert (frozen.opening, frozen.is_whole) == ("The mill grinds", False)
    assert failings(frozen, "The mill grinds flour.") == ()
    assert failings(frozen, "The sea is blue.") != ()
    whole = freeze_texts("p", ["It is forty-two."] * 2)
    assert whole is not None
    assert whole.is_whole
    assert freeze_texts("p", ["It is forty-two."]) is None
    assert freeze_texts("p", ["It is forty-two.", "No."]) is None


def test_nothing_is_frozen_that_honest_engines_disagree_about() -> None:
    otherwise = (*REFERENCE[:2], GreedyToken(" makes", 1.0), *REFERENCE[3:])
    assert freeze("p", [REFERENCE, otherwise]) is None
    sure = tuple(GreedyToken(each.token, 1.0) for each in REFERENCE)
    assert freeze("p", [sure, sure]) is not None
    assert freeze("p", [sure, (*sure[:6], GreedyToken(" makes", 1.0), *sure[7:])]) is None
    unsure = tuple(GreedyToken(each.token) for each in REFERENCE)
    assert freeze("p", [unsure]) is None


def test_a_margin_is_the_distance_to_the_next_best_token() -> None:
    top = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -2.0}, {"token": "c", "logprob": -3.0}]
    choice = {"logprobs": {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": top}]}}
    assert greedy_tokens_of(choice) == (GreedyToken("a", 1.5),)
    choice["logprobs"]["content"][0] = {"token": "b", "logprob": -2.0, "top_logprobs": top}
    assert greedy_tokens_of(choice) == (GreedyToken("b", 0.0),)


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({"logprobs": {"content": [{"token": "a", "logprob": -1}, {"token": "b", "logprob": -0.5}]}}, 2),
        ({"logprobs": {"content": [{"token": "a", "logprob": -1}, {"token": 5, "logprob": -0.5}]}}, 1),
        ({"logprobs": {"content": [{"token": "a", "logprob": float("nan")}]}}, 0),
        ({"logprobs": {"content": ["a"]}}, 0),
        ({"logprobs": None}, 0),
        ({"logprobs": {"content": [{"token": "a", "logprob": -1}] * 9_999}}, 256),
    ],
)
def test_what_an_engine_tells_is_read_as_far_as_it_makes_sense(choice: dict[str, Any], tokens: int) -> None:
    assert len(greedy_tokens_of(choice)) == tokens


def test_who_is_alone_with_an_answer_is_found_by_a_third() -> None:
    same, longer = "the mill grinds what the race brings, day and night, all year", "and so on"
    assert outliers({"a": same, "b": same + longer, "c": "no"}) == frozenset("c")
    assert outliers({"a": same, "b": same}) == frozenset()
    assert outliers({"a": same, "b": "no"}) is None
    assert outliers({"a": same, "b": same, "c": "no", "d": "no"}) is None
    assert outliers({"a": "1", "b": "2", "c": "3"}) is None
    assert outliers({}) is None


@given(st.lists(st.tuples(st.sampled_from(sorted(FAILING_MAX)), st.booleans()), max_size=200))
def test_stakes_are_a_fair_game_at_the_tolerated_rate(audits: list[tuple[Kind, bool]]) -> None:
    stakes = Stakes()
    for kind, has_failed in audits:
        m = FAILING_MAX[kind]
        failed, passed = (stakes.after(kind, has_failed=each) for each in (True, False))
        # A restart gives something away, which the bound counts; otherwise the mean does not grow.
        if passed.each != Stakes().each:
            assert m * failed.total + (1 - m) * passed.total == pytest.approx(stakes.total)
        stakes = stakes.after(kind, has_failed=has_failed)
        assert stakes.total >= 1
    assert stakes.audits == len(audits)
    assert stakes.honest_probability_max == pytest.approx(len(audits) * ALPHA)


def caught_after(rate: float, audits: int, chance: random.Random) -> int | None:
    stakes = Stakes()
    for number in range(1, audits + 1):
        stakes = stakes.after("canary", has_failed=chance.random() < rate)
        if stakes.is_proof:
            return number
    return None


def test_honest_sellers_are_not_caught_and_dishonest_ones_are() -> None:
    chance = random.Random(5)
    assert [caught_after(FAILING_MAX["canary"], 500, chance) for _ in range(200)] == [None] * 200
    assert caught_after(1.0, 500, chance) == 4
    half = [caught_after(0.5, 500, chance) for _ in range(100)]
    assert all(each is not None and each <= 40 for each in half)


def test_names_that_agree_take_nothing_from_who_is_not_like_them() -> None:
    """Only a check of the seller by itself, beside them, does."""
    case = new_case(is_probation=False)
    for number in range(20):
        case = after_audit(case, Audit("redundancy", f"r{number}", NOW_MS, "d" * 64, ("like nobody",)))
    assert case.stakes.is_proof
    assert decide(case).action == "watch"
    assert decide(after_audit(case, Audit("canary", "c", NOW_MS, "d" * 64, ("other words",)))).action == "suspend"


def test_an_honest_year_excuses_nothing() -> None:
    stakes = Stakes()
    for _ in range(5_000):
        stakes = stakes.after("canary", has_failed=False)
    for _ in range(4):
        assert not stakes.is_proof
        stakes = stakes.after("canary", has_failed=True)
    assert stakes.is_proof


def test_how_often_is_looked() -> None:
    fine = Stakes()
    assert audit_rate(Watched(0, is_probation=False, stakes=fine)) == FIRST_RATE
    assert audit_rate(Watched(FIRST_REQUESTS, is_probation=True, stakes=fine)) == PROBATION_RATE
    assert audit_rate(Watched(FIRST_REQUESTS, is_probation=False, stakes=fine)) == TRUSTED_RATE
    assert audit_rate(Watched(FIRST_REQUESTS, False, fine, forced_audits=1)) == FORCED_RATE


def looked_at(case: Case, *audits: Audit) -> Case:
    for each in audits:
        case = after_audit(after_request(case), each)
    return case


def test_no_seller_loses_money_by_canaries_alone() -> None:
    case = new_case(is_probation=True)
    assert decide(case).action == "none"
    failed = [audit("canary", f"c{n}", "the answer begins differently from the model's") for n in range(6)]
    assert decide(looked_at(case, failed[0])).action == "watch"
    case = looked_at(case, *failed)
    decision = decide(case)
    assert decision.action == "suspend"
    assert "is below 6e-07" in decision.reasons[0]
    assert len(decision.reasons) == 7
    assert not any("c1" in reason for reason in decision.reasons)
    for n in range(FAILED_MIN):
        assert decide(case).action == "suspend"
        case = after_confirmation(case, f"c{n}")
    assert decide(case).action == "forfeit"
    # What it never failed confirms nothing.
    assert after_confirmation(looked_at(new_case(is_probation=True), failed[0]), "c9").confirmed == frozenset()


def test_a_failure_is_followed_up_for_a_while() -> None:
    case = looked_at(new_case(is_probation=False), audit("canary", "n", "forgotten"))
    assert looked_at(case, *[audit()] * (FAILURE_AUDITS - 1)).watched.forced_audits == 1
    assert looked_at(case, *[audit()] * FAILURE_AUDITS).watched.forced_audits == 0
    assert after_anomaly(case).watched.forced_audits == FAILURE_AUDITS


def test_an_anomaly_is_followed_up_and_then_forgotten() -> None:
    case = after_anomaly(new_case(is_probation=False))
    assert audit_rate(case.watched) == FORCED_RATE
    assert decide(case).action == "watch"
    case = looked_at(case, *[audit()] * ANOMALY_AUDITS)
    assert decide(case).action == "none"


@pytest.mark.parametrize(
    ("audits", "tier"),
    [
        ([], "declared"),
        ([audit()] * (PASSED_MIN - 1), "declared"),
        ([audit()] * PASSED_MIN, "canary"),
        ([audit()] * 5 + [audit("redundancy")] * 5, "canary"),
        ([audit("redundancy")] * PASSED_MIN + [audit("redundancy", "c", "far")], "redundancy"),
        ([audit("redundancy")] * PASSED_MIN, "redundancy"),
        ([audit(made_ms=NOW_MS - LASTS_MS)] * PASSED_MIN, "declared"),
        ([audit("canary", "c", "other")] * PASSED_MIN, "declared"),
    ],
)
def test_a_tier_is_what_was_looked_at(audits: list[Audit], tier: Tier) -> None:
    assert tier_found(audits, NOW_MS) == tier
    case = looked_at(new_case(is_probation=False), *(each for each in audits if not each.has_failed))
    found = evidence_of(case, audits, id_of("auditor"), NOW_MS)
    assert (found.tier if found else "declared") == tier
    if found:
        assert found.digest == digest_of(audits) != digest_of(audits[1:])


def test_no_seller_vouches_for_one_under_suspicion() -> None:
    audits = [audit()] * PASSED_MIN + [audit("canary", "c", "other")]
    case = looked_at(new_case(is_probation=False), *audits)
    assert evidence_of(case, audits, id_of("auditor"), NOW_MS) is None
