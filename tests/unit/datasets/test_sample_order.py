"""The sample order is a pure function of seed, epoch and round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.datasets.sample_order import PlainOrder, SampleOrder, epoch_order, sample_seed
from potluck.errors import InputError

orders = st.builds(
    SampleOrder,
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    epochs=st.integers(1, 4),
)


@given(orders)
def test_every_epoch_is_a_permutation(order):
    seen: dict[int, list[int]] = {}
    for r in range(order.rounds):
        samples = order.round(r)
        assert samples.epoch * order.rounds_per_epoch + samples.index_in_epoch == r
        assert len(samples.ids) == order.batch_size or samples.index_in_epoch == order.rounds_per_epoch - 1
        seen.setdefault(samples.epoch, []).extend(samples.ids)
    assert len(seen) == order.epochs
    assert all(sorted(ids) == list(range(order.count)) for ids in seen.values())


@given(orders, st.data())
def test_rounds_may_be_asked_for_in_any_order(order, data):
    forwards = [order.round(r) for r in range(order.rounds)]
    shuffled = data.draw(st.permutations(range(order.rounds)))
    assert [order.round(r) for r in shuffled] == [forwards[r] for r in shuffled]


def test_the_order_never_changes_between_versions():
    assert epoch_order(0, 0, 8).tolist() == [0, 3, 7, 5, 1, 2, 6, 4]
    assert epoch_order(7, 3, 8).tolist() == [7, 1, 6, 0, 4, 2, 3, 5]
    assert sample_seed(7, 3, 5) == 5841661343417491386


def test_seeds_and_epochs_differ():
    assert epoch_order(0, 0, 50).tolist() != epoch_order(0, 1, 50).tolist()
    assert epoch_order(0, 1, 50).tolist() != epoch_order(1, 0, 50).tolist()
    seeds = {sample_seed(s, e, i) for s in range(4) for e in range(4) for i in range(50)}
    assert len(seeds) == 4 * 4 * 50


def test_a_number_of_rounds_may_end_within_an_epoch():
    order = SampleOrder(seed=1, count=10, batch_size=4, rounds=5)
    assert (order.rounds, order.epochs) == (5, 2)
    assert [len(order.round(r).ids) for r in range(5)] == [4, 4, 2, 4, 4]
    with pytest.raises(IndexError):
        order.round(5)
    with pytest.raises(IndexError):
        order.round(-1)


def test_an_evaluation_goes_from_the_first_sample_to_the_last():
    order = PlainOrder(count=5, batch_size=2)
    assert [order.round(r).ids for r in range(order.rounds)] == [(0, 1), (2, 3), (4,)]


@pytest.mark.parametrize("wrong", [{}, {"epochs": 1, "rounds": 1}, {"epochs": 0}, {"rounds": 1, "batch_size": 0}])
def test_impossible_orders_are_refused(wrong):
    with pytest.raises(InputError, match="sample order"):
        SampleOrder(**{"seed": 0, "count": 4, "batch_size": 2, **wrong})
