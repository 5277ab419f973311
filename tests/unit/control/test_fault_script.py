"""Scripts of faults: read, refused in one line, and reported on."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.control.fault_script import Fault, check_devices, read_script
from potluck.coordinator.fleet.fault_rehearsal import report
from potluck.errors import InputError
from potluck.metrics.records import IncidentRecord

GOOD = """
[[fault]]
device = "b"
do = "freeze"
after_round = 9
seconds = 4

[[fault]]
device = "a"
do = "kill"
after_round = 3
"""


def test_faults_come_in_the_order_of_their_rounds(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(GOOD)
    assert read_script(tmp_path / "script.toml") == (
        Fault(device="a", do="kill", after_round=3),
        Fault(device="b", do="freeze", after_round=9, seconds=4.0),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fault = 3", "[[fault]] tables"),
        ("[[fault]]", "device"),
        (GOOD.replace("kill", "bite"), "fault[1]"),
        (GOOD.replace("= 4", "= -4"), "fault[0].seconds"),
        (GOOD.replace("= 3", "= -1"), "fault[1].after_round"),
        (GOOD + "factor = 0.5", "fault[1].factor"),
        (GOOD + "seconds = nan", "fault[1].seconds"),
        (GOOD + "wrong = 1", "wrong"),
        ("[[fault", "cannot be read"),
    ],
)
def test_a_wrong_script_is_refused_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(text)
    with pytest.raises(InputError) as refused:
        read_script(tmp_path / "script.toml")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_nobody_misbehaves_who_did_not_agree() -> None:
    faults = (Fault(device="a", do="kill", after_round=3),)
    check_devices(faults, ["a", "b"], ["a"])
    with pytest.raises(InputError, match="a did not agree to it; start it with potluck join --chaos"):
        check_devices(faults, ["a", "b"], ["b"])
    with pytest.raises(InputError, match="a is not here; there are b, c"):
        check_devices(faults, ["b", "c"], ["b"])


def test_the_report_says_how_each_was_survived() -> None:
    faults = [(2.0, Fault(device="a", do="kill", after_round=3)), (5.0, Fault(device="b", do="slow", after_round=6))]
    lost = IncidentRecord(
        kind="lost", round=4, device="a", what="a is gone", action="goes on without a", at_s=2.25, recovery_s=0.5,
        replayed_rounds=1, moved_bytes=2_000_000,
    )  # fmt: skip
    other = IncidentRecord(kind="checkpoint", round=8, device=None, what="disk full", action="goes on", at_s=9.0)
    text = report(faults, [Fault(device="c", do="leave", after_round=99)], [lost, other])
    assert "| kill a | 3 | 0.25 s | 0.50 s | 1 | 2.0 MB | goes on without a |" in text
    assert "| slow b | 6 | no incident |" in text
    assert "| leave c | 99 | never happened |" in text
    assert "- disk full: goes on" in text
