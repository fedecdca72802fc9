"""Submissions: right, wrong and malicious ones, each in one line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.commands.evaluate import main
from agent.instances import submissions
from agent.instances.best_known import BestKnown, read_best_known, read_placements, write_best_known
from agent.instances.instance import find_instances
from agent.instances.submissions import check_submission, enter
from envs.placements.files import placement_to_json, write_placement
from envs.placements.placement import single_device
from graphs.system.errors import InputError
from graphs.system.folders import FolderError, locked

NAME = "doppler:chain_mm"
Record = dict[str, Any]


@pytest.fixture
def validate(capsys: pytest.CaptureFixture[str]) -> Callable[[Path], tuple[int, list[str]]]:
    """Validates a path; returns the exit code, and the lines of both streams."""

    def run(path: Path) -> tuple[int, list[str]]:
        capsys.readouterr()
        try:
            code = main(["--validate", str(path)])
        except SystemExit as left:
            code = int(left.code or 0)
        printed = capsys.readouterr()
        lines = [*printed.out.splitlines(), *printed.err.splitlines()]
        return code, [line for line in lines if not line.startswith("Compiling")]

    return run


def best(name: str = NAME, **claims: object) -> Record:
    (instance,) = find_instances([name])
    placement = read_placements()[name]
    return placement_to_json(instance.graph, instance.cluster, placement) | claims


def test_a_right_submission_holds(tmp_path: Path, validate) -> None:  # type: ignore[no-untyped-def]
    step_s = read_best_known()[NAME].step_time_s
    (tmp_path / "right.json").write_text(json.dumps(best(step_time_s=step_s, method="refine", seconds=1)))
    code, (line,) = validate(tmp_path / "right.json")
    assert code == 0
    assert line.endswith(f"{NAME}: 1200.07 ms, proved optimal; 1.000000 of the best known")


def test_a_new_best_is_said_with_who_found_it(tmp_path: Path) -> None:
    known = read_best_known()
    del known[NAME]
    (tmp_path / "it.json").write_text(json.dumps(best(found_by="me")))
    verdict = check_submission(tmp_path / "it.json", known)
    assert verdict.is_new_best
    assert verdict.line.endswith("proved optimal; new best, the first")
    assert (verdict.found.found_by, verdict.found.method) == ("me", "unknown")


@pytest.mark.parametrize("claim_s", [1.1, 1.3, 1e300, 0])
def test_a_wrong_claim_is_one_line(claim_s: float, tmp_path: Path, validate) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "wrong.json").write_text(json.dumps(best(step_time_s=claim_s)))
    code, (line,) = validate(tmp_path)
    assert code == 1
    assert line.endswith(f"claims a step of {claim_s:.9g} s, but takes 1.20007 s")


def test_a_placement_that_does_not_fit_is_one_line(tmp_path: Path, validate) -> None:  # type: ignore[no-untyped-def]
    (instance,) = find_instances(["tarnawski:latency-layers-bert24_inference"])
    write_placement(tmp_path / "one.json", instance.graph, instance.cluster, single_device(instance.graph, 0))
    code, (line,) = validate(tmp_path)
    assert code == 1
    assert "is out of memory: acc0 needs 1.954 GB and has 0.6291 GB" in line


def test_stages_of_a_pipeline_are_kept(tmp_path: Path, validate) -> None:  # type: ignore[no-untyped-def]
    name = "pipedream:alexnet"
    step_s = read_best_known()[name].step_time_s
    with gzip.open(tmp_path / "stages.json.gz", "wt") as file:
        json.dump(best(name, step_time_s=step_s), file)
    code, (line,) = validate(tmp_path)
    assert (code, line.endswith("1.000000 of the best known")) == (0, True)


def text_of(**changes: object) -> str:
    return json.dumps(best() | changes)


MALICIOUS = {
    "a path outside": (
        lambda: text_of(graph="../../../etc/passwd"),
        "no instance is named '../../../etc/passwd'",
    ),
    "a pattern": (lambda: text_of(graph="doppler:*"), "no instance is named 'doppler:*'"),
    "a line end": (lambda: text_of(graph="doppler:chain_mm\nok"), "holds characters that cannot be printed"),
    "a million ops": (
        lambda: text_of().replace("{", "{" + ",".join(f'"{i}":"g"' for i in range(10**6)) + ","),
        "has at most 4194304",
    ),
    "many ops": (lambda: text_of(device_of={f"n{i}": "g" for i in range(10**5)}), "op 'n76' is not in graph"),
    "not a number": (lambda: text_of(step_time_s=1).replace(": 1}", ": NaN}"), "NaN is no JSON number"),
    "beyond numbers": (
        lambda: text_of(step_time_s=1).replace(": 1}", ": 1e999}"),
        "step_time_s: is too large",
    ),
    "a claim of another kind": (lambda: text_of(method=["rm"]), "method: is an array; expected a string"),
    "an unknown key": (
        lambda: text_of(run="rm -rf /"),
        "unknown key 'run'; known keys are cluster, commit, date, device_of, format, found_by",
    ),
    "less than no time": (lambda: text_of(seconds=-1), "seconds: is -1; expected at least 0"),
    "a text too long for a table": (
        lambda: text_of(found_by="x" * 10**6),
        "found_by: has 1000000 characters; expected at most 200",
    ),
    "another cluster": (lambda: text_of(cluster="4xv100"), "is for cluster '4xv100', not for 'corgi4'"),
    "a device that is none": (
        lambda: text_of(device_of=best()["device_of"] | {"n0": "gpu9"}),
        "is on 'gpu9'",
    ),
    "deep": (lambda: "[" * 10**5, "is nested too deeply"),
    "no object": (lambda: "[]", "is an array; expected an object"),
}


@pytest.mark.parametrize("what", MALICIOUS)
def test_a_malicious_submission_is_one_line(what: str, tmp_path: Path, validate) -> None:  # type: ignore[no-untyped-def]
    make, message = MALICIOUS[what]
    (tmp_path / "it.json").write_text(make())
    code, (line,) = validate(tmp_path / "it.json")
    assert code == 2
    assert message in line
    assert len(line) < 1_200


def test_what_decompresses_to_too_much_is_one_line(tmp_path: Path, validate) -> None:  # type: ignore[no-untyped-def]
    with gzip.open(tmp_path / "bomb.json.gz", "wb") as file:
        file.write(b" " * (submissions.MAX_BYTES + 1))
    code, (line,) = validate(tmp_path)
    assert (code, "holds more than 4194304 bytes" in line) == (2, True)


def test_a_folder_gets_a_line_for_each_file_and_the_worst_exit_code(tmp_path: Path, validate) -> None:  # type: ignore[no-untyped-def]
    assert validate(tmp_path) == (2, [f"evaluate.py: {tmp_path}: holds no placement files; give 1 to 10000"])
    assert validate(tmp_path / "none.json")[0] == 2
    (tmp_path / "right.json").write_text(text_of())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "wrong.json").write_text(text_of(step_time_s=1))
    (tmp_path / "notes.txt").write_text("no placement")
    assert (validate(tmp_path)[0], len(validate(tmp_path)[1])) == (1, 2)
    (tmp_path / "broken.json").write_text("{")
    assert (validate(tmp_path)[0], len(validate(tmp_path)[1])) == (2, 3)


def test_a_new_best_enters_the_table(tmp_path: Path) -> None:
    table, given = tmp_path / "table", tmp_path / "given"
    table.mkdir()
    given.mkdir()
    (instance,) = find_instances([NAME])
    worse = single_device(instance.graph, 0)
    worse_s = instance.objective.simulate(worse).total_s
    before = BestKnown(NAME, worse_s, 0.1, "single", "us", "abc", "2026-01-01", 1.0)
    write_best_known([before], {NAME: worse}, table)
    (given / "it.json").write_text(json.dumps(best(method="refine", seconds=2)))
    assert len(enter(given, table)) == 1
    after = read_best_known(table)[NAME]
    assert (after.method, after.seconds, after.found_by) == ("refine", 2.0, "unknown")
    assert [after.step_time_s, after.bound_s] == pytest.approx([1.20007] * 2)
    assert (read_placements(table)[NAME].device_of == read_placements()[NAME].device_of).all()
    assert not enter(given, table)
    (given / "later.json").write_text(text_of(step_time_s=1))
    with pytest.raises(InputError, match=r"claims a step of 1 s, but takes 1\.20007 s; nothing is entered"):
        enter(given, table)
    (given / "later.json").write_text("{}")
    with pytest.raises(InputError, match="are missing"):
        enter(given, table)


def test_one_process_at_a_time_enters_and_a_step_is_never_without_its_placement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, given = tmp_path / "table", tmp_path / "it.json"
    table.mkdir()
    given.write_text(json.dumps(best()))
    write_best_known([], {}, table)
    with locked(table), pytest.raises(FolderError, match="in use by another process"):
        enter(given, table)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("agent.instances.best_known.write_csv", killed)
        with pytest.raises(KeyboardInterrupt):
            enter(given, table)
    assert read_best_known(table).keys() < read_placements(table).keys()
    assert len(enter(given, table)) == 1
    assert read_best_known(table).keys() == read_placements(table).keys()
