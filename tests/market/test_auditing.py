"""Audits: what is right passes, what is odd is seen, and the bound on honest sellers caught by chance holds."""

import random
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.protocol.audits.canaries import USES_MAX, Canary, failings, freeze, freeze_texts, is_retired
from market.protocol.audits.evidence import LASTS_MS, PASSED_MIN, digest_of, evidence_of, tier_found
from market.protocol.audits.logprobs import TokenLogprob, distance_nats, token_logprobs_of
from market.protocol.audits.needle import hide, is_found
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
    audited,
    decide,
    new_case,
    next_kind,
)
from market.protocol.listings.listing import Tier
from market.protocol.matching.track import Track
from tests.market.parties import NOW_MS, id_of
from tests.market.trade import DIGEST

WORDS = "the mill grinds what the race brings to it".split()  # noqa: SIM905
REFERENCE = tuple(
    TokenLogprob(f" {word}", -0.1 * n, margin=1.0 if n != 5 else 0.01) for n, word in enumerate(WORDS, 1)
)


def nudged(nats: float) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(each.token, each.logprob - nats, each.margin) for each in REFERENCE)


def text_of(logprobs: tuple[TokenLogprob, ...]) -> str:
    return "".join(each.token for each in logprobs)


def canary() -> Canary:
    frozen = freeze("c1", "What does a mill do?", 12, [REFERENCE, nudged(0.001)])
    assert frozen is not None
    return frozen


def audit(kind: Kind = "canary", probe: str = "c1", *failed: str, made_ms: int = NOW_MS) -> Audit:
    return Audit(kind, probe, made_ms, DIGEST, failed)


def test_a_canary_knows_how_its_answer_begins() -> None:
    frozen = canary()
    assert frozen.opening == " the mill grinds what"
    assert not frozen.is_whole
    assert failings(frozen, text_of(REFERENCE), ()) == ()
    assert failings(frozen, text_of(REFERENCE).lstrip() + " and more", nudged(0.004)) == ()
    # Where the model itself hardly knows, another word is no lie.
    assert failings(frozen, "the mill grinds what water brings", ()) == ()
    assert failings(frozen, "I am only a small model", ()) == ("the answer begins differently from the model's",)
    (far,) = failings(frozen, text_of(REFERENCE), nudged(0.01))
    assert "nats a token away" in far
    (other,) = failings(
        frozen, text_of(REFERENCE), (TokenLogprob(" made", -0.1), TokenLogprob(" up", -0.1), *REFERENCE[:2])
    )[1:]
    assert "belong to another text" in other
    assert is_retired(USES_MAX, 0)
    assert is_retired(0, 3)
    assert not is_retired(3, 2)


def test_a_whole_answer_has_nothing_behind_it() -> None:
    frozen = freeze("c2", "What does a mill do?", 12, [REFERENCE[:4], nudged(0.001)[:4]])
    assert frozen is not None
    assert frozen.is_whole
    assert failings(frozen, "the mill grinds what\n", ()) == ()
    assert failings(frozen, "the mill grinds what\u200b", ()) == ("the answer continues where the model's ends",)
    assert failings(frozen, "the mill", ()) == ("the answer begins differently from the model's",)


def test_texts_alone_make_a_canary_too() -> None:
    frozen = freeze_texts("c3", "p", 1, ["The mill grinds what comes.", " The mill grinds whatever comes."])
    assert frozen is not None
    assert (frozen.opening, frozen.is_whole) == ("The mill grinds", False)
    assert failings(frozen, "The mill grinds flour.", REFERENCE) != ()
    assert failings(frozen, "The mill grinds flour.", ()) == ()
    assert failings(frozen, "The sea is blue.", ()) != ()
    whole = freeze_texts("c4", "p", 1, ["It is forty-two."] * 2)
    assert whole is not None
    assert whole.is_whole
    assert freeze_texts("c5", "p", 1, ["It is forty-two."]) is None
    assert freeze_texts("c6", "p", 1, ["It is forty-two.", "No."]) is None


def test_nothing_is_frozen_that_honest_engines_disagree_about() -> None:
    otherwise = (*REFERENCE[:2], TokenLogprob(" makes", -1.0), *REFERENCE[3:])
    assert freeze("c", "p", 1, [REFERENCE, otherwise]) is None
    assert freeze("c", "p", 1, [REFERENCE, nudged(0.5)]) is None
    unsure = tuple(TokenLogprob(each.token, each.logprob) for each in REFERENCE)
    assert freeze("c", "p", 1, [unsure]) is None


def test_log_probabilities_are_compared_where_tokens_are_the_same() -> None:
    assert distance_nats(REFERENCE, nudged(0.25)) == pytest.approx(0.25)
    assert distance_nats(REFERENCE, REFERENCE[:3]) is None
    assert distance_nats(REFERENCE, (*REFERENCE[:6], TokenLogprob(" x", -1.0))) == inf
    assert distance_nats(REFERENCE, (*REFERENCE[:4], TokenLogprob(" x", -1.0))) == 0


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
def test_what_sellers_tell_is_read_as_far_as_it_makes_sense(choice: dict[str, Any], tokens: int) -> None:
    assert len(token_logprobs_of(choice)) == tokens


@given(st.integers(200, 20_000), st.floats(0, 0.9), st.integers(10_000, 99_999))
def test_a_needle_is_found_by_who_reads_everything(chars: int, place: float, number: int) -> None:
    needle = hide(
        (f"Sentence {n} says nothing new." for n in range(10_000)), "locker", str(number), chars, place=place
    )
    assert len(needle.prompt) == pytest.approx(chars, abs=160)
    assert needle.prompt.index(str(number)) <= place * chars + 80
    assert is_found(needle, f"It is {number:,}.")
    assert not is_found(needle, f"It is {number + 1}.")


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


def test_a_failure_is_followed_up_by_its_kind() -> None:
    case = looked_at(new_case(is_probation=False), audit("needle", "n", "forgotten"))
    assert next_kind(case) == "needle"
    assert next_kind(looked_at(case, *[audit()] * (FAILURE_AUDITS - 1))) == "needle"
    assert next_kind(looked_at(case, *[audit()] * FAILURE_AUDITS)) is None
    assert after_anomaly(case).watched.forced_audits == FAILURE_AUDITS


def test_an_anomaly_is_followed_up_and_then_forgotten() -> None:
    case = after_anomaly(new_case(is_probation=False))
    assert audit_rate(case.watched) == FORCED_RATE
    assert decide(case).action == "watch"
    case = looked_at(case, *[audit()] * ANOMALY_AUDITS)
    assert decide(case).action == "none"
    assert audited(Track(), audit(), 10.0).audits.good == 1
    assert audited(Track(), audit("canary", "c", "other"), 10.0).audits.bad == 1


@pytest.mark.parametrize(
    ("audits", "tier"),
    [
        ([], "declared"),
        ([audit()] * (PASSED_MIN - 1), "declared"),
        ([audit()] * PASSED_MIN, "canary"),
        ([audit()] * 5 + [audit("logprob")] * 5, "canary"),
        ([audit("logprob")] * PASSED_MIN + [audit("logprob", "c", "far")], "logprob"),
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
