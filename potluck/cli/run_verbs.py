"""The command line for runs that are under way, or over: status, attach, stop."""

from __future__ import annotations

from pathlib import Path

import click

_RUN = click.argument("run", required=False, type=Path)
_JSON = click.option("--json", is_flag=True, help="End standard output with one JSON object.")


@click.command(short_help="Say how far a run is, or how it ended.")
@_RUN
@_JSON
def status(run: Path | None, json: bool) -> int:
    """Say how far the run in the folder RUN is, or how it ended.

    Without RUN it is the one in runs/ that was started last; others that are running get a line each.

    \b
    Examples:
      potluck status
      potluck status runs/20260131-120000 --json
    """
    from potluck.cli.verbs.status import status as show

    return show(run, as_json=json)


@click.command(short_help="Look at a run that trains elsewhere.")
@_RUN
def attach(run: Path | None) -> int:
    """Show the run in the folder RUN as `potluck train` does, until it ends.

    Without RUN it is the one in runs/ that was started last. Ctrl-C leaves, and the run goes on.

    \b
    Examples:
      potluck attach
      potluck attach runs/20260131-120000
    """
    from potluck.cli.verbs.attach import attach as follow

    return follow(run)


@click.command(short_help="End a run in order, and keep what it has.")
@_RUN
@click.option("--now", is_flag=True, help="End it at once; what came after the last checkpoint is lost.")
@click.option("--timeout", metavar="TIME", default="10min", show_default=True, help="Longest wait for its end.")
def stop(run: Path | None, now: bool, timeout: str) -> int:
    """Let the run in the folder RUN finish its round, save everything and end.

    Without RUN it is the one in runs/ that is running.

    \b
    Examples:
      potluck stop
      potluck stop runs/20260131-120000 --now
    """
    from potluck.cli.verbs.stop import stop as end

    return end(run, now=now, timeout=timeout)
