"""Reporters: no row is dropped silently, curves have no doubles, and a full disk is an error at once."""

from __future__ import annotations

import io
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from agent.contexts.outputs import MetricsError, MetricsFile, ProgressBar, TensorBoard
from agent.learn.metrics import ITERATION, PHASE, PROGRESS, SCORE, SPEED, USES, meanings, step_time_name


def row(iteration: int) -> str:
    return f'{{"timesteps": {10 * iteration}, "{ITERATION}": {iteration}}}\n'


def rows(*iterations: int) -> str:
    return "".join(map(row, iterations))


@contextmanager
def files_up_to(n_bytes: int) -> Iterator[None]:
    """Lets no file of this process grow beyond a size, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "last", ["", '{"timesteps": 3', '{"timesteps": 30, "training/iteration": 3}', "\0\0"]
)
def test_a_last_row_that_was_cut_off_is_dropped_and_a_whole_one_kept(tmp_path: Path, last: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(rows(1, 2) + last)
    file = MetricsFile(path)
    whole = last.endswith("}")
    assert file.last_iteration == 2 + whole
    file.report(40, {ITERATION: 4})
    file.close({})
    assert path.read_text() == rows(1, 2, *[3] * whole, 4)


def test_rows_from_the_first_reported_on_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(rows(1, 2, 3, 4))
    file = MetricsFile(path)
    assert path.read_text() == rows(1, 2, 3, 4)
    for iteration in (3, 4):
        file.report(10 * iteration, {ITERATION: iteration})
    file.close({})
    assert path.read_text() == rows(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\xff\n", "metrics.jsonl:2: is no JSON"),
        (b'{"timesteps": \n', "metrics.jsonl:2: is no JSON"),
        (b"[1]\n", "metrics.jsonl:2: has no whole number as 'training/iteration'"),
        (b'{"timesteps": 20}\n', "metrics.jsonl:2: has no whole number"),
        (b'{"training/iteration": "2"}\n', "metrics.jsonl:2: has no whole number"),
        (b'{"training/iteration": null}\n', "metrics.jsonl:2: has no whole number"),
    ],
)
@pytest.mark.parametrize("after", ["", row(3)])
def test_a_damaged_row_is_named_and_nothing_changed(
    tmp_path: Path, line: bytes, message: str, after: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    before = row(1).encode() + line + after.encode()
    path.write_bytes(before)
    with pytest.raises(MetricsError, match=message):
        MetricsFile(path)
    assert path.read_bytes() == before


def test_curves_of_a_run_that_goes_on_have_no_doubles(tmp_path: Path) -> None:
    for first in (1, 3):
        board = TensorBoard(tmp_path, {"seed": 0, "families": ["a", "b"]})
        for at in range(first, first + 4):
            board.report(10 * at, {"train/loss": at + 0.5 * (first == 3)})
        board.close({"best_score": 0.25} if first == 3 else {})
    events = EventAccumulator(str(tmp_path)).Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert losses == [(10, 1), (20, 2), (30, 3.5), (40, 4.5), (50, 5.5), (60, 6.5)]
    assert [event.value for event in events.Scalars("result/best_score")] == [0.25]
    assert "metrics/text_summary" in events.Tags()["tensors"]


NAMES_OF_SB3 = (
    *("rollout/ep_rew_mean", "eval/mean_reward", "train/approx_kl", "train/entropy_loss", "time/fps"),
    *("train/explained_variance", "train/clip_fraction"),
)


@pytest.mark.parametrize("first_phase", [1, 3])
def test_a_training_is_one_run_with_an_overview_and_each_curve_once(tmp_path: Path, first_phase: int) -> None:
    board = TensorBoard(tmp_path / "made", {})
    values = {name: 1.0 + at for at, name in enumerate(meanings())} | {PHASE: first_phase}
    for timesteps in (0, 10):
        board.report(timesteps, values)
        board.show(timesteps, "eval/placed_now", np.zeros((8, 4, 3), dtype=np.uint8))
    board.close({})
    assert len([*tmp_path.rglob("*")]) == 2, "a folder and an event file"
    events = EventAccumulator(str(tmp_path / "made")).Reload()
    curves = {tag: tuple(event.value for event in events.Scalars(tag)) for tag in events.Tags()["scalars"]}
    assert {*NAMES_OF_SB3, "compare/to_annealing", "compare/trained_on"} <= curves.keys()
    assert len(set(curves.values())) == len(curves), "no curve is drawn twice"
    assert [event.step for event in events.Images("eval/placed_now")] == [0, 10]
    layout = Layout.FromString(events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    charts = [list(chart.multiline.tag) for chart in layout.category[0].chart]
    assert charts[0] == ["compare/to_annealing", "compare/trained_on"]
    assert charts[1] == ["training/phase" if first_phase == 1 else "train/entropy_loss"]
    assert {tag for chart in charts for tag in chart} <= curves.keys()


def test_hyperparameters_are_listed_against_the_final_ratio_first(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, {"seed": 0})
    board.report(10, {"train/loss": 1.0})
    board.close({"timesteps": 10.0, "wall_s": 1.0, "best_score": 0.25})
    events = EventAccumulator(str(tmp_path)).Reload()
    content = events.SummaryMetadata("_hparams_/experiment").plugin_data.content
    metrics = HParamsPluginData.FromString(content).experiment.metric_infos
    assert metrics[0].name.tag == "result/best_score"
    assert len(metrics) == 3


def test_nothing_is_written_before_the_first_report(tmp_path: Path) -> None:
    for reporter in (MetricsFile(tmp_path / "metrics.jsonl"), TensorBoard(tmp_path, {})):
        reporter.close({"best_score": 0.5})
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error_at_once_and_leaves_what_was_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    board, file = TensorBoard(tmp_path, {}), MetricsFile(tmp_path / "metrics.jsonl")
    reporters = (board, file)
    for reporter in reporters:
        reporter.report(10, {ITERATION: 1, PHASE: 3})
    (events,) = tmp_path.glob("events.*")
    for reporter, path in ((board, events), (file, tmp_path / "metrics.jsonl")):
        with files_up_to(path.stat().st_size + 8), pytest.raises(OSError, match=r"large|space"):
            reporter.report(20, {ITERATION: 2, PHASE: 3})
        with files_up_to(path.stat().st_size), pytest.raises(OSError, match=r"large|space"):
            reporter.close({})
    assert EventAccumulator(str(tmp_path)).Reload().Scalars(PHASE)[0].value == 3
    assert MetricsFile(tmp_path / "metrics.jsonl").last_iteration == 1
    assert capfd.readouterr().err == ""


def test_the_bar_and_its_lines_fit_80_columns() -> None:
    shown = io.StringIO()
    bar = ProgressBar(Console(file=shown, force_terminal=True, width=80, highlight=False))
    bar.announce("annealing 1,029 graphs to compare with", 0.1)
    bar._progress.refresh()
    ratios = {step_time_name(use, "single"): 0.7 for use in USES}
    for _ in range(2):
        bar.report(98_765_432, {SPEED: 12_345.6, PROGRESS: 0.5, SCORE: 0.7, **ratios})
    bar.close({})
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", shown.getvalue())
    assert "annealing 1,029 graphs to compare with" in text
    assert text.count("   decisions    score  validation  held out  decisions/s") == 1
    assert text.count("  98,765,432    0.700       0.700     0.700       12,346") == 2
    assert "score 0.700  12,346 decisions/s" in text
    assert "…" not in text
    assert max(map(len, re.split(r"[\r\n]", text))) <= 80
