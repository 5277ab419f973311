"""The jobs to copy: each can be read and traced, and the README's too."""

import re
from pathlib import Path

import pytest

from potluck.job import load_job
from potluck.runtime.prepare import prepare_job

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
