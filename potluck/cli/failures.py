"""Whatever goes wrong in a verb becomes one line on standard error and an exit code (docs/exit-codes.md)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from potluck.advice import one_line
from potluck.cli.stopping import EXIT_INTERRUPTED
from potluck.errors import InputError, PotluckError
from potluck.settings.own_command import command

TRACEBACK = "traceback.txt"


class Unexpected(PotluckError):
    """An error nobody foresaw; the message says where its traceback is."""


class StoppedByUser(PotluckError):
    """Ctrl-C, or a request of the system, ended it at once."""

    exit_code = EXIT_INTERRUPTED


class OneLineGroup(click.Group):
    """A group of verbs that return their exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a verb and exits."""
        kwargs |= {"standalone_mode": False, "prog_name": "potluck"}
        given = args[0] if args else kwargs.get("args")
        given = sys.argv[1:] if given is None else given
        sys.exit(_exit_code(lambda: super(OneLineGroup, self).main(*args, **kwargs), given))


def _exit_code(run: Any, given: Sequence[str]) -> int:
    as_json = "--json" in given
    try:
        with traceback_kept():
            return run() or 0
    except click.ClickException as error:
        text = f"{error.format_message()} {_advice(error, given)}"
        if as_json:  # no verb has begun, so none has said it
            said_as_json(text, InputError.exit_code)
        complain(text)
        return InputError.exit_code
    except PotluckError as error:
        complain(str(error))
        return error.exit_code
    except click.Abort:  # only while the command line itself is read
        return EXIT_INTERRUPTED


def _advice(error: click.ClickException, given: Sequence[str]) -> str:
    if "extra argument" in error.message and "--resume" in given:
        return "Name the folder with --run-dir: --resume takes none"
    context = getattr(error, "ctx", None)
    verb = context.command_path.split()[1:] if context else []
    return f"Try {command(*verb, '--help')}"


@contextlib.contextmanager
def traceback_kept(folder: Callable[[], Path | None] = lambda: None) -> Iterator[None]:
    """Turns an error nobody foresaw into one line; its traceback goes to a file, in the folder if it exists by then."""
    try:
        yield
    except (PotluckError, click.ClickException, click.Abort, click.exceptions.Exit):
        if debugging():
            traceback.print_exc()
        raise
    except KeyboardInterrupt:
        raise StoppedByUser("interrupted") from None
    except Exception as error:
        if debugging():
            raise
        path = _write_traceback(folder())
        what = one_line(error)
        raise Unexpected(f"unexpected {what}; the traceback is in {path} (POTLUCK_DEBUG=1 shows it here)") from error


def debugging() -> bool:
    return os.environ.get("POTLUCK_DEBUG", "") not in ("", "0")


def said_as_json(text: str, exit_code: int) -> None:
    """Ends standard output with what went wrong as a JSON object."""
    click.echo(json.dumps({"error": text, "exit_code": exit_code}))


def complain(text: str) -> None:
    """Writes one line to standard error."""
    click.echo("potluck: " + " ".join(text.split()), err=True)


def _write_traceback(folder: Path | None) -> Path:
    with contextlib.suppress(OSError):
        if folder is not None and folder.is_dir():
            path = folder / TRACEBACK
            path.write_text(traceback.format_exc())
            return path
    with tempfile.NamedTemporaryFile("w", prefix="potluck-", suffix=f"-{TRACEBACK}", delete=False) as file:
        file.write(traceback.format_exc())
    return Path(file.name)
