"""Data sets that `train --data` names are looked for before any device starts."""

from pathlib import Path

import numpy as np
import pytest

from potluck.cli.verbs.train import check
from potluck.errors import InputError
from potluck.settings.verb_settings import TrainSettings


def _settings(data: str) -> TrainSettings:
    return TrainSettings(local=(("a", 1.0), ("b", 0.5)), sync="ours", data=(data,))


def test_what_one_of_the_devices_does_not_have_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "a.npz", input=np.zeros(1))
    with pytest.raises(InputError, match=r"--data digits: b\.npz does not exist; give a file of this device"):
        check(_settings("digits={device}.npz"), resume=False)
    np.savez(tmp_path / "b.npz", input=np.zeros(1))
    assert check(_settings("digits={device}.npz"), resume=False).fleet is not None


@pytest.mark.parametrize("data", ["digits", "digits=a.csv"])
def test_what_cannot_be_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="--data"):
        check(_settings(data), resume=False)
