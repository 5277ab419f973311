"""What is shown where standard error is no terminal: plain lines, and not too many."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from potluck.cli.display import working as working_module
from potluck.cli.display.choose import open_display
from potluck.cli.display.lines import LineDisplay
from potluck.cli.display.measuring import lines_to, measure_display
from potluck.cli.display.working import EVERY_S, working
from potluck.metrics.records import IncidentRecord
from potluck.metrics.tally import Tally
from potluck.metrics.watcher import Watcher


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_are_written_to_a_file_and_to_a_terminal_that_cannot_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert isinstance(open_display("title", "note"), LineDisplay)
    with measure_display() as display:
        assert isinstance(display.progress, Tally)
    monkeypatch.setattr("sys.stderr", Terminal())
    assert not isinstance(open_display("title", "note"), LineDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_display("title", "note"), LineDisplay)


def test_what_is_measured_is_noted_as_it_is() -> None:
    stream = io.StringIO()
    lines_to(stream).note("a [b] done")
    assert stream.getvalue() == "a [b] done\n"


def test_of_what_is_worked_on_a_line_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(working_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with working() as say:
        for word, passed_s in (("first", 0.0), ("soon", EVERY_S / 2), ("later", EVERY_S / 2), ("again", EVERY_S / 2)):
            clock.now += passed_s
            say(word)
    assert capsys.readouterr().err == "first\nlater\n"


def test_the_first_words_are_said_at_once_though_the_clock_began_just_now(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(working_module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    with working() as say:
        say("first")
    assert capsys.readouterr().err == "first\n"


def test_a_display_watches_a_run() -> None:
    stream = io.StringIO()
    watcher: Watcher = LineDisplay(stream)
    watcher.record(IncidentRecord(kind="lost", round=3, device="pi", what="pi is gone", action="going on", at_s=1.0))
    assert "pi is gone" in stream.getvalue()
