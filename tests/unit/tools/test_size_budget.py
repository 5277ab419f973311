"""The size budget names offenders and fails only beyond the hard limit."""

from pathlib import Path

from tools.size_budget import FILE, FUNCTION, main


def _function(lines: int) -> str:
    return "def long():\n" + "    x = 1\n" * (lines - 1)


def test_small_files_pass_silently(tmp_path: Path, capsys):
    (tmp_path / "small.py").write_text(_function(FUNCTION.soft))
    assert main([str(tmp_path)]) == 0
    assert "1 files, 0 over budget" in capsys.readouterr().out


def test_over_the_soft_limit_is_named_but_passes(tmp_path: Path, capsys):
    (tmp_path / "long.py").write_text(_function(FUNCTION.soft + 1))
    assert main([str(tmp_path)]) == 0
    assert f"long.py:1 long: {FUNCTION.soft + 1} lines" in capsys.readouterr().out


def test_function_over_the_hard_limit_fails(tmp_path: Path):
    (tmp_path / "long.py").write_text(_function(FUNCTION.hard + 1))
    assert main([str(tmp_path)]) == 1


def test_file_over_the_hard_limit_fails(tmp_path: Path):
    (tmp_path / "long.py").write_text("x = 1\n" * (FILE.hard + 1))
    assert main([str(tmp_path)]) == 1
