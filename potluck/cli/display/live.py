"""The display in a terminal: progress, loss, a lane for each device, what happened last."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from potluck.cli.display.idle_line import idle_text
from potluck.metrics.records import Record, RunEnded
from potluck.metrics.run_view import RunView, sparkline
from potluck.units import duration_text

REFRESHES_PER_S = 8  # smooth to the eye, and drawing takes next to nothing of a core
WIDEST = 110  # columns; a wider picture is harder to read, not easier
SHOWN_MESSAGES = 3  # the newest, so that lanes have the rest of a small terminal


class LiveDisplay:
    """Draws the run and draws it again; safe to call from several threads."""

    def __init__(self, console: Console, title: str, first_note: str) -> None:
        self._view = RunView()
        self._title = title
        self._note = first_note
        self._lock = threading.RLock()
        self._spinner = Spinner("dots")
        self._live = Live(self, console=console, refresh_per_second=REFRESHES_PER_S)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._note = ""
            self._live.transient = self._view.rounds == 0  # nothing was trained: leave no picture of it
        self._live.stop()

    def note(self, text: str) -> None:
        """Says something about the run."""
        with self._lock:
            self._note = text

    def announce(self, text: str) -> None:
        """Says something that stays on the screen, above the picture."""
        self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def judged_by(self, metric: str) -> None:
        """Says what decides which evaluation is the best."""
        with self._lock:
            self._view.best_metric = metric

    def stopping(self) -> None:
        """Called from a signal handler: only leaves a mark, which the next picture shows."""
        self._view.stopping = True

    def catch_up(self, past: Sequence[tuple[Record, float]]) -> None:
        """Takes in what happened before anybody looked."""
        for record, at_s in past:
            self.record(record, at_s)

    def record(self, record: Record, now_s: float | None = None) -> None:
        """Takes a record in; the next picture shows it."""
        with self._lock:
            self._view.see(record, time.monotonic() if now_s is None else now_s)
            if isinstance(record, RunEnded):
                self._note = "saving the model and ending the devices"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        with self._lock:
            picture = self._picture(width)
        yield from console.render(picture, options.update(width=width))

    def _picture(self, width: int) -> RenderableType:
        view = self._view
        rows: list[RenderableType] = [Rule(Text(self._title, style="bold"), align="left", style="dim")]
        if view.rounds:
            rows += [self._progress(), self._numbers(width)]
            if view.plan_reason:
                rows.append(_labelled("plan", view.plan_reason))
            rows += [_labelled(name, text) for name, text in view.kept().items()]
            rows.append(Padding(self._devices(width), (1, 0)))
            if view.idle:  # in full, as what to do about it comes last
                rows.append(_labelled("idle", idle_text(view.idle), no_wrap=False))
            for message in list(view.messages)[-SHOWN_MESSAGES:]:
                rows.append(Text(f" {message}", style="dim", overflow="ellipsis", no_wrap=True))
        if view.stopping and not view.ended:
            after = " after this round; Ctrl-C once more stops at once" if view.training else ""
            rows.append(Text(f" stopping{after}", style="yellow"))
        elif self._note and not view.training:
            self._spinner.update(text=Text(self._note))
            rows.append(self._spinner)
        rows.append(Text(""))  # the terminal echoes ^C where the cursor is; on a full line it would wrap and shift all
        return Group(*rows)

    def _progress(self) -> RenderableType:
        view = self._view
        bar = ProgressBar(total=view.rounds, completed=view.done, width=None)
        left = view.seconds_left(time.monotonic())
        end = "" if left is None or view.ended else f"{duration_text(left)} left"
        digits = len(str(view.rounds))
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(width=11)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right", min_width=13)
        epoch = f"epoch {view.epoch + 1}/{view.epochs}"
        table.add_row(" round", f"{view.done:>{digits}}/{view.rounds}", bar, epoch, end)
        return table

    def _numbers(self, width: int) -> RenderableType:
        view = self._view
        rate = view.samples_per_s()
        parts = [] if rate is None else [f"{rate:,.0f} samples/s"]
        if view.learning_rate is not None:
            parts.append(f"learning rate {view.learning_rate:.2e}")
        facts = " · ".join(parts)
        loss = "" if view.loss is None else f"{view.loss:.4f} "
        line = Text(loss, style="bold", no_wrap=True)
        line.append(sparkline(list(view.losses), max(0, width - 15 - len(loss) - len(facts))), style="cyan not bold")
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(width=11)
        table.add_column(ratio=1, no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_row(" loss", line, facts)
        return table

    def _devices(self, width: int) -> RenderableType:
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True, min_width=10, max_width=24, overflow="ellipsis")
        table.add_column(width=max(10, width // 4))
        table.add_column(justify="right", width=9)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis", style="dim")
        for device, lane in self._view.lanes.items():
            colour = "green" if lane.busy >= 0.7 else "yellow" if lane.busy >= 0.3 else "blue"
            table.add_row(
                f" {device}",
                Bar(1.0, 0, lane.busy, color=colour, bgcolor="grey23"),
                f"{lane.busy:4.0%} busy",
                lane.where,
            )
        return table


def _labelled(label: str, text: str, *, no_wrap: bool = True) -> RenderableType:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=11)
    table.add_column(ratio=1, no_wrap=no_wrap, overflow="ellipsis")
    table.add_row(f" {label}", Text(text))
    return table
