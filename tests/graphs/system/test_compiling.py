"""Compilation ahead: each job runs once, and what was done before a death stays done."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numba
import pytest

from graphs.system.compiling import compile_ahead


def die_unless_older(file: Path) -> None:
    if not file.exists():
        file.touch()
        os._exit(1)
    file.unlink()


def test_jobs_run_once_and_those_that_died_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    log, file = tmp_path / "made", tmp_path / "died"
    jobs = {"makes": partial(os.mkdir, log), "fails": partial(os.mkdir, "/dev/null")}
    jobs["dies"] = partial(die_unless_older, file)
    compile_ahead(jobs)
    assert log.exists()
    assert file.exists()
    log.rmdir()
    assert "3/3" in capfd.readouterr().err
    compile_ahead(jobs)
    assert not log.exists()
    assert not file.exists()
    assert "1/1" in capfd.readouterr().err
    compile_ahead(jobs)
    assert not capfd.readouterr().err
