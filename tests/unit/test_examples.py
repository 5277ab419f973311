"""The jobs to copy: each can be read and traced, and the README's too."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from potluck.coordinator.samples.loading import first_samples
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.datasets.own_data import WantedData, read_local
from potluck.job.job import load_job

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "name", ["digits_cnn", "stdlib_lm", "adapters", pytest.param("hf_vit", marks=[pytest.mark.hf, pytest.mark.full])]
)
def test_an_example_can_be_cut_for_several_devices(name):
    assert len(prepare_job(load_job(ROOT / "examples" / f"{name}.py")).facts.blocks) >= 3


def test_the_first_job_of_the_readme_can_be_cut_for_several_devices(tmp_path):
    (snippet,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "job.py").write_text(snippet)
    assert len(prepare_job(load_job(tmp_path / "job.py")).facts.blocks) >= 3


@pytest.mark.parametrize(("name", "data"), [("private_digits", "digits=a.npz"), ("private_text", "text=a.txt")])
def test_an_example_with_data_of_its_own_writes_what_its_job_needs(name, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["example", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    job = load_job(ROOT / "examples" / f"{name}.py")
    feeds = first_samples(job, 2).feeds
    wanted = {n: WantedData(tuple(t.shape[1:]), str(t.dtype).removeprefix("torch.")) for n, t in feeds.items()}
    assert (read_local(data).fitted(wanted).samples or 0) > 100
    prepare_job(job)
