"""Where standard error is no terminal, progress is plain lines."""

from __future__ import annotations

import io
import sys

import pytest

from potluck.cli.display import choose, measuring, working
from potluck.cli.display.choose import open_display
from potluck.cli.display.lines import LineDisplay
from potluck.cli.display.live import LiveDisplay


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_a_run_is_drawn_only_in_a_terminal_that_can_draw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(open_display("potluck train", "reading"), LineDisplay)
    assert capsys.readouterr().err == ""  # the first note is left out
    monkeypatch.setattr(choose.sys, "stderr", Terminal())
    assert isinstance(open_display("potluck train", "reading"), LiveDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_display("potluck train", "reading"), LineDisplay)


def test_what_is_being_done_is_said_at_most_every_so_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(working.time, "monotonic", lambda: now[0])
    with working.working() as say:
        for text, after_s in (("one", 0.0), ("two", working.EVERY_S / 2), ("three", working.EVERY_S / 2)):
            now[0] += after_s
            say(text)
    assert capsys.readouterr().err == "one\nthree\n"


def test_measuring_has_a_line_for_each_note_and_one_for_how_far_all_are(capsys: pytest.CaptureFixture[str]) -> None:
    with measuring.measure_display() as display:
        display.note("tracing the model")
        display.progress("desk", 9, 9)
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "tracing the model"
    assert all(line.startswith("measuring: desk 9/9") for line in rest)


def test_in_a_terminal_measuring_draws_a_bar_and_notes_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with measuring.measure_display() as display:
        display.note("[bold] is no markup")
        display.progress("desk", 1, 0)
    assert "[bold] is no markup" in stream.getvalue()
    assert "desk" in stream.getvalue()
