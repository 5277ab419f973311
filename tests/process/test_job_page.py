"""docs/job.md: its snippets run as they are, its jobs can be trained, and it leaves no field out."""

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

import potluck
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.metrics.records import Record

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "job.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_every_field_has_a_row():
    rows = "\n".join(line.partition("|")[2].partition("|")[0] for line in PAGE.splitlines() if line.startswith("|"))
    assert [f.name for f in dataclasses.fields(potluck.Job) if f"`{f.name}`" not in rows] == []


def test_every_record_is_named():
    assert [kind.__name__ for kind in Record.__args__ if f"`{kind.__name__}`" not in PAGE] == []


@pytest.mark.full
@pytest.mark.hf
def test_the_snippets_run_and_every_job_can_be_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = tmp_path / "page.py"
    script.write_text("\n".join(SNIPPETS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the devices, which start in the same folder
    names = runpy.run_path(str(script))
    assert names["result"].reason == "finished"
    assert names["result"].rounds == 20
    jobs = {name: value for name, value in names.items() if isinstance(value, potluck.Job)}
    assert len(jobs) >= 10
    for job in jobs.values():
        assert len(prepare_job(job).facts.blocks) >= 2
