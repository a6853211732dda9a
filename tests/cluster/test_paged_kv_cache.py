"""The KV cache of GPUs holds what the one of CPUs holds, in whatever order slots grow, are copied and freed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cluster.compute.kv_cache import KvCache
from cluster.compute.paged_kv_cache import PagedKvCache
from cluster.errors import ClusterError
from cluster.models.model_card import KvShape
from cluster.plans.plan import BLOCK_TOKENS

CPU = torch.device("cpu")
SLOTS, BLOCKS, SHAPES = 4, 12, (KvShape(2, 3, 4), KvShape(1, 5, 0))

ORDERS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, SLOTS - 1), st.integers(1, 5 * BLOCK_TOKENS // 2)),
        st.tuples(st.just("copy"), st.integers(0, SLOTS - 1), st.integers(0, SLOTS - 1)),
        st.tuples(st.just("free"), st.integers(0, SLOTS - 1), st.just(0)),
    ),
    max_size=25,
)


class Both:
    """Both kinds of caches with the same orders, and the number of tokens in each slot."""

    def __init__(self) -> None:
        self.plain = KvCache(SHAPES, BLOCKS, torch.float32, CPU, output_dim=2)
        self.paged = PagedKvCache(SHAPES, BLOCKS, torch.float32, CPU, output_dim=2)
        self.lengths = dict.fromkeys(range(SLOTS), 0)

    def write(self, slot: int, count: int) -> None:
        start = self.lengths[slot]
        for cache in (self.plain, self.paged):
            cache.reserve(slot, start + count)
        for layer, shape in enumerate(SHAPES):
            keys = torch.randn(count, shape.kv_heads, shape.key_dim)
            values = torch.randn(count, shape.kv_heads, shape.value_dim)
            expected = self.plain.write(layer, slot, start, keys, values)
            for mine, theirs in zip(self.paged.write(layer, slot, start, keys, values), expected, strict=True):
                assert torch.equal(mine, theirs)
        rows = torch.randn(count, 2)
        for cache in (self.plain, self.paged):
            cache.write_outputs(slot, start, rows)
        self.lengths[slot] += count

    def copy(self, source: int, target: int) -> None:
        if source == target or not self.lengths[source]:
            return
        self.free(target, 0)
        for cache in (self.plain, self.paged):
            cache.copy(source, target, self.lengths[source])
        self.lengths[target] = self.lengths[source]

    def free(self, slot: int, _: int) -> None:
        self.lengths[slot] = 0
        self.plain.free(slot)
        self.paged.free(slot)

    def compare(self) -> None:
        """Compare all slots, one by one and together."""
        assert self.plain.loaded_stages() == self.paged.loaded_stages()
        held = {slot: length for slot, length in self.lengths.items() if length}
        together = self.paged.padded_places(list(held), max(held.values(), default=0))
        for (slot, length), places in zip(held.items(), together, strict=True):
            assert torch.equal(places[:length], self.paged.places(slot, length))
            blocks = self.paged.loaded_stages()[slot]
            assert not self.paged.read(0, places[blocks * BLOCK_TOKENS :])[0].any(), "padding must be zeros"
            for layer in range(len(SHAPES)):
                keys, values = self.paged.read(layer, places[:length])
                assert torch.equal(keys, self.plain._keys[slot][layer][:, :length])
                assert torch.equal(values, self.plain._values[slot][layer][:, :length])
            expected = self.plain.read_outputs(slot, 0, length)
            assert torch.equal(self.paged.read_outputs(slot, 0, length), expected)


@given(orders=ORDERS)
def test_it_holds_what_slots_of_their_own_hold(orders: list[tuple[str, int, int]]) -> None:
    both = Both()
    for name, slot, other in orders:
        try:
            getattr(both, name)(slot, other)
        except ClusterError as error:
            assert "is full" in str(error)
            return
        both.compare()


def test_what_is_not_stored_is_refused() -> None:
    paged = PagedKvCache(SHAPES, BLOCKS, torch.float32, CPU, output_dim=2)
    paged.reserve(0, BLOCK_TOKENS)
    with pytest.raises(ClusterError, match="no output rows of slot 0"):
        paged.read_outputs(0, 10, BLOCK_TOKENS)
    with pytest.raises(ClusterError, match="fewer than"):
        paged.copy(0, 1, BLOCK_TOKENS + 1)
