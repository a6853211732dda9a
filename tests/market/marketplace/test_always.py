"""A marketplace's own sellers always have room for their listings, also those that came a moment ago."""

from market.marketplace.always import Always


def test_sellers_are_looked_up_again_after_some_seconds() -> None:
    now_s, sellers = [0.0], {"first"}
    always = Always({"own"}, lambda: now_s[0])
    always.sellers = lambda: frozenset(sellers)
    assert [each in always for each in ("own", "first", "second")] == [True, True, False]
    sellers.add("second")
    assert "second" not in always
    now_s[0] = 10.0
    assert [each in always for each in ("own", "first", "second", "stranger")] == [True, True, True, False]
