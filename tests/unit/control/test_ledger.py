"""Sample ids and losses of a round, as the ledger has them."""

from hypothesis import given
from hypothesis import strategies as st

from potluck.control.ledger import loss_digest, pack, unpack


@given(st.lists(st.integers(0, 30)))
def test_ids_come_back_in_order(ids):
    assert unpack(pack(ids)) == tuple(ids)


def test_stretches_are_written_short():
    assert pack([5, 7, 8, 9, 10, 2, 3]) == (5, (7, 11), 2, 3)


def test_the_loss_digest_sees_every_bit():
    assert loss_digest([0.1, 0.2]) != loss_digest([0.2, 0.1])
    assert loss_digest([0.3]) != loss_digest([0.1 + 0.2])
    assert loss_digest([0.0]) != loss_digest([-0.0])
