"""Kept answers: bounded whatever is put there, gone when their time is over."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.stored import AnswerStore, StoredAnswer

ENTRIES_MAX, BYTES_MAX, LASTS_S = 4, 100, 10.0

puts = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 120), st.floats(0, 5)), max_size=40)


def stored(size_bytes: int) -> StoredAnswer:
    return StoredAnswer("application/json", b"x" * size_bytes, 1, 1)


@given(puts)
def test_the_shelf_keeps_its_bounds_and_what_was_put_there_last(steps: list[tuple[int, int, float]]) -> None:
    now_s = 0.0
    store = AnswerStore(ENTRIES_MAX, BYTES_MAX, LASTS_S, clock=lambda: now_s)
    for number, size_bytes, pause_s in steps:
        now_s += pause_s
        key = b"%d" % number
        store.put(key, stored(size_bytes))
        assert len(store._kept) <= ENTRIES_MAX
        assert store.size_bytes <= BYTES_MAX
        if size_bytes <= BYTES_MAX:
            assert store.get(key) == stored(size_bytes)
    now_s += LASTS_S
    assert all(store.get(b"%d" % number) is None for number in range(10))
    assert store.size_bytes == 0


def test_what_is_used_stays() -> None:
    store = AnswerStore(2, BYTES_MAX, LASTS_S)
    store.put(b"one", stored(1))
    store.put(b"two", stored(2))
    store.get(b"one")
    store.put(b"three", stored(3))

    assert store.get(b"one")
    assert store.get(b"two") is None
