"""The audit proves exactly-once, and finds every way in which it is not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.control import audit as audit_module
from potluck.control.audit import audit
from potluck.control.ledger import RunFacts, entry
from potluck.coordinator.run_folder.ledger_file import Ledger, write_facts
from potluck.datasets.sample_order import SampleOrder
from potluck.errors import InputError


def run(folder, *, count=10, batch_size=4, epochs=2, seed=5, upto=None, change=None):
    """A run's files; `change` may edit the list of (epoch, ids) per round."""
    order = SampleOrder(seed=seed, count=count, batch_size=batch_size, epochs=epochs)
    write_facts(folder, RunFacts(samples=count, batch_size=batch_size, epochs=epochs, rounds=None, seed=seed))
    rounds = [(s.epoch, list(s.ids)) for s in (order.round(r) for r in range(order.rounds))]
    if change:
        change(rounds)
    (folder / "ledger.jsonl").unlink(missing_ok=True)
    ledger = Ledger(folder / "ledger.jsonl", fsync=False)
    for r, (epoch, ids) in enumerate(rounds[:upto]):
        ledger.append(entry(round=r, epoch=epoch, term=r // 2, ids=ids, loss=1 / (r + 1), digest="d"))
    ledger.close()
    return audit(folder)


@given(
    count=st.integers(1, 30),
    batch_size=st.integers(1, 12),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    upto=st.integers(0, 40),
)
def test_an_honest_run_is_proven_at_any_point(tmp_path_factory, count, batch_size, epochs, seed, upto):
    folder = tmp_path_factory.mktemp("run")
    found = run(folder, count=count, batch_size=batch_size, epochs=epochs, seed=seed, upto=upto)
    per_epoch = -(-count // batch_size)
    assert found.exact, found.problems
    assert found.rounds == min(upto, per_epoch * epochs)
    assert found.epochs_complete == found.rounds // per_epoch
    assert found.samples == found.epochs_complete * count + found.rounds % per_epoch * batch_size
    assert found.finished == (found.rounds == per_epoch * epochs)


@given(
    st.integers(0, 5),
    st.integers(0, 3),
    st.sampled_from(["lost", "doubled", "reordered", "swapped", "foreign"]),
    st.booleans(),
)
def test_whatever_happened_to_a_sample_is_found(tmp_path_factory, round, place, kind, stop_there):
    touched = []

    def change(rounds):
        epoch, ids = rounds[round]
        at = place % len(ids)
        touched.append((epoch, ids[at]))
        other = rounds[round + 1 if round % 3 < 2 else round - 1][1]
        if kind == "lost":
            del ids[at]
        elif kind == "doubled":
            ids.append(ids[at])
        elif kind == "reordered":
            ids[at], ids[at - 1] = ids[at - 1], ids[at]
        elif kind == "swapped":
            ids[at], other[0] = other[0], ids[at]
        else:
            ids[at] = 99

    found = run(tmp_path_factory.mktemp("run"), change=change, upto=round + 1 if stop_there else None)
    assert not found.exact
    assert found.problems
    assert (found.lost == tuple(touched)) == (
        kind in ("lost", "foreign") or bool(stop_there and kind == "swapped" and found.lost)
    )
    assert (found.doubled == tuple(touched)) == (kind == "doubled")


def edit(folder, change):
    path = folder / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return audit(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ls: ls.pop(2), "round 3 where 2 comes next"),
        (lambda ls: ls.insert(2, ls[2]), "round 2 where 3 comes next"),
        (lambda ls: ls.insert(2, ls.pop(3)), "round 3 where 2 comes next"),
        (lambda ls: ls[3].update(epoch=0), "round 3 says epoch 0"),
        (lambda ls: ls[3].update(epoch=10**9), "round 3 says epoch 1000000000"),
        (lambda ls: ls[2].update(term=9), "term 1 after term 9"),
        (lambda ls: ls.append({**ls[5], "round": 6, "epoch": 2}), "the run has only 6"),
        (lambda ls: ls[1].pop("samples"), "line 2: cannot be read"),
        (lambda ls: ls[1].update(samples=[[0, 10**12]]), "line 2: cannot be read"),
        (lambda ls: ls[1].update(samples=[True]), "line 2: cannot be read"),
        (lambda ls: ls[1].update(loss="nothing"), "line 2: cannot be read"),
    ],
)
def test_a_ledger_that_does_not_hold_together_is_named_by_line(tmp_path, change, words):
    run(tmp_path)
    found = edit(tmp_path, change)
    assert not found.exact
    assert any(words in p for p in found.problems), found.problems


def test_a_whole_epoch_missing_is_found(tmp_path):
    run(tmp_path)
    found = edit(tmp_path, lambda lines: lines.__delitem__(slice(0, 3)))
    assert found.lost == tuple((0, i) for i in range(10))


def test_another_seed_is_another_order(tmp_path):
    run(tmp_path)
    write_facts(tmp_path, RunFacts(samples=10, batch_size=4, epochs=2, rounds=None, seed=6))
    assert not audit(tmp_path).exact


def test_a_torn_last_line_was_never_committed(tmp_path):
    run(tmp_path, upto=4)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes() + b'{"round":4,"ep')
    found = audit(tmp_path)
    assert found.exact
    assert found.torn
    assert found.rounds == 4


def test_a_run_of_rounds_may_stop_within_an_epoch(tmp_path):
    run(tmp_path, upto=4)
    write_facts(tmp_path, RunFacts(samples=10, batch_size=4, epochs=None, rounds=4, seed=5))
    assert audit(tmp_path).finished


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(InputError, match=r"run\.json"):
        audit(tmp_path)
    (tmp_path / "run.json").write_text('{"samples": 3}')
    with pytest.raises(InputError, match=r"run\.json.*batch_size"):
        audit(tmp_path)
    write_facts(tmp_path, RunFacts(samples=10, batch_size=4, epochs=None, rounds=4, seed=5))
    with pytest.raises(InputError, match=r"ledger\.jsonl"):
        audit(tmp_path)


def test_a_hopeless_ledger_gives_a_short_list(tmp_path):
    run(tmp_path, count=500, batch_size=2)
    write_facts(tmp_path, RunFacts(samples=500, batch_size=2, epochs=2, rounds=None, seed=6))
    found = audit(tmp_path)
    assert len(found.problems) == 21
    assert found.problems[-1].startswith("and ")


def test_the_audit_shares_no_code_with_what_it_judges():
    modules = {str(getattr(v, "__module__", None) or getattr(v, "__name__", "")) for v in vars(audit_module).values()}
    assert not {m for m in modules if m.startswith("potluck.") and m not in ("potluck.control.audit", "potluck.errors")}


def said(folder, **words):
    end = {"type": "run_ended", "reason": "early", "round": 4, "message": "", "seconds": 1.0, "at_s": 1.0, **words}
    (folder / "records.jsonl").write_text('{"type": "evaluation"}\n' + json.dumps(end) + "\n")


def test_a_run_that_stopped_early_is_finished(tmp_path):
    said(tmp_path)
    found = run(tmp_path, upto=4)
    assert (found.rounds, found.rounds_expected) == (4, 6)
    assert found.stopped_early
    assert found.finished


@pytest.mark.parametrize("words", [{"reason": "stopped"}, {"round": 3}, {"type": "round"}])
def test_a_run_that_ended_otherwise_or_went_on_is_not_finished(tmp_path, words):
    said(tmp_path, **words)
    assert not run(tmp_path, upto=4).finished


def test_a_run_that_stopped_early_must_still_be_exact(tmp_path):
    said(tmp_path)
    found = run(tmp_path, upto=4, change=lambda rounds: rounds[1][1].reverse())
    assert not found.exact
    assert not found.finished


@pytest.mark.parametrize("text", ["", "[]\n", "null\n", "{}\n", "\0\n"])
def test_records_that_cannot_be_read_change_nothing(tmp_path, text):
    (tmp_path / "records.jsonl").write_text(text)
    found = run(tmp_path, upto=4)
    assert found.exact
    assert not found.finished
