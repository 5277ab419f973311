"""Every setting can be given as a flag, and every flag says what it means."""

from __future__ import annotations

import click
import pytest

from potluck.cli import verb_flags
from potluck.cli.main import main
from potluck.settings.verb_settings import VERBS, Settings


def flags_of(verb: str) -> dict[str, click.Option]:
    options = (parameter for parameter in main.commands[verb].params if isinstance(parameter, click.Option))
    return {str(option.name): option for option in options if not option.hidden}


@pytest.mark.parametrize("kind", VERBS)
def test_every_setting_of_a_verb_is_a_flag(kind: type[Settings]) -> None:
    flags = flags_of(kind.TABLE)
    assert set(kind.readers()) <= set(flags)
    assert all(flags[key].help for key in kind.readers())


def test_flags_are_listed_in_the_order_in_which_they_are_given() -> None:
    @click.command()
    @verb_flags.together(verb_flags.JSON, verb_flags.CONFIG)
    def verb() -> None:
        """Nothing."""

    assert [parameter.name for parameter in verb.params] == ["json", "config"]
