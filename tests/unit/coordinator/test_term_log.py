"""Terms are read back as they were told; one that a crash cut off was told to nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.coordinator.run_folder.term_log import TERMS, Term, TermLog, read_terms
from potluck.errors import InputError
from potluck.types import Member, Plan, Stage

PLAN = Plan(micro_batch_size=2, micro_batches=4, stages=(Stage(blocks=(0, 3), group=(Member(device="a", share=4),)),))


def term(number: int) -> Term:
    return Term(term=number, round=10 * number, plan=PLAN)


def write(path: Path, *numbers: int) -> None:
    log = TermLog(path)
    for number in numbers:
        log.append(term(number))
    log.close()


def test_a_term_that_was_cut_off_is_forgotten_and_the_next_one_follows(tmp_path: Path) -> None:
    path = tmp_path / TERMS
    assert read_terms(path) == {}
    write(path, 1, 2)
    path.write_bytes(path.read_bytes()[:-9])
    assert read_terms(path) == {1: term(1)}
    write(path, 2, 3)
    assert read_terms(path) == {number: term(number) for number in (1, 2, 3)}


def test_a_damaged_term_is_named(tmp_path: Path) -> None:
    path = tmp_path / TERMS
    write(path, 1, 2)
    path.write_bytes(path.read_bytes().replace(b'"round":10', b'"round":"x"'))
    with pytest.raises(InputError, match=r"terms\.jsonl, line 1: is damaged: .*; restore the file"):
        read_terms(path)
