"""Outputs: no row is dropped silently, curves have no doubles, and a full disk is an error at once."""

from __future__ import annotations

import io
import math
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from stable_baselines3.common.logger import HParam, Image, KVWriter, Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from agent.contexts.outputs import EventWriter, MetricsError, MetricsFile, ProgressBar
from agent.learn.metrics import HELD_OUT, HPARAM_METRICS, MEANINGS, SCORE, SPEED, UPDATES, VALIDATION


def row(updates: int) -> str:
    return f'{{"timesteps": {10 * updates}, "{UPDATES}": {updates}}}\n'


def rows(*updates: int) -> str:
    return "".join(map(row, updates))


def log(output: KVWriter, timesteps: int, values: dict[str, Any]) -> None:
    """Writes a row as SB3's logger does."""
    output.write(values, dict.fromkeys(values, ()), timesteps)


@contextmanager
def files_up_to(n_bytes: int) -> Iterator[None]:
    """Lets no file of this process grow beyond a size, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("last", ["", '{"timesteps": 3', '{"timesteps": 30, "time/updates": 3}', "\0\0"])
def test_a_last_row_that_was_cut_off_is_dropped_and_a_whole_one_kept(tmp_path: Path, last: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(rows(1, 2) + last)
    file = MetricsFile(path)
    whole = last.endswith("}")
    assert file.last_update == 2 + whole
    log(file, 40, {UPDATES: 4})
    file.close()
    assert path.read_text() == rows(1, 2, *[3] * whole, 4)


def test_rows_from_the_first_reported_on_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(rows(1, 2, 3, 4))
    file = MetricsFile(path)
    assert path.read_text() == rows(1, 2, 3, 4)
    log(file, 30, {UPDATES: 3})
    log(
        file,
        40,
        {UPDATES: np.int64(4), "train/loss": math.nan, "picture": "a text", "time/fps": np.float32(2)},
    )
    file.close()
    last = row(4).replace("}", ', "train/loss": null, "time/fps": 2.0}')
    assert path.read_text() == rows(1, 2, 3) + last, "of numbers alone"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\xff\n", "metrics.jsonl:2: is no JSON"),
        (b"[1]\n", "metrics.jsonl:2: has no whole number as 'time/updates'"),
        (b'{"timesteps": 20}\n', "metrics.jsonl:2: has no whole number"),
        (b'{"time/updates": "2"}\n', "metrics.jsonl:2: has no whole number"),
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
        board = EventWriter(tmp_path)
        for at in range(first, first + 4):
            log(board, 10 * at, {"train/loss": at + 0.5 * (first == 3)})
        board.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert losses == [(10, 1), (20, 2), (30, 3.5), (40, 4.5), (50, 5.5), (60, 6.5)]
    assert "metrics/text_summary" in events.Tags()["tensors"]


NAMES_OF_SB3 = {
    *("rollout/ep_rew_mean", "eval/mean_reward", "train/approx_kl", "train/entropy_loss", "time/fps"),
    *("train/explained_variance", "train/clip_fraction"),
}


def test_a_training_is_one_run_with_an_overview_and_each_curve_once(tmp_path: Path) -> None:
    board, shown = EventWriter(tmp_path / "made"), MEANINGS.keys() - {UPDATES}
    values = {name: 1.0 + at for at, name in enumerate(sorted(shown))}
    for timesteps in (0, 10):
        picture = Image(np.zeros((8, 4, 3), dtype=np.uint8), "HWC")
        board.write(
            {**values, UPDATES: 1, "eval/placed_now": picture},
            dict.fromkeys([*values, "eval/placed_now"], ()) | {UPDATES: ("tensorboard",)},
            timesteps,
        )
    board.close()
    assert len([*tmp_path.rglob("*")]) == 2, "a folder and an event file"
    events = EventAccumulator(str(tmp_path / "made")).Reload()
    curves = {tag: tuple(event.value for event in events.Scalars(tag)) for tag in events.Tags()["scalars"]}
    assert curves.keys() == shown >= NAMES_OF_SB3
    assert len(set(curves.values())) == len(curves), "no curve is drawn twice"
    assert [event.step for event in events.Images("eval/placed_now")] == [0, 10]
    layout = Layout.FromString(events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    charts = [list(chart.multiline.tag) for chart in layout.category[0].chart]
    assert charts[0] == ["compare/to_annealing", "compare/trained_on"]
    assert {tag for chart in charts for tag in chart} <= curves.keys()


def test_hyperparameters_are_listed_against_the_ratio_to_annealing_first(tmp_path: Path) -> None:
    board = EventWriter(tmp_path, {"order": ["topo", "bfs"], "init": None})
    log(board, 0, {"hparams": HParam({"seed": 0}, dict(HPARAM_METRICS))})
    board.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    session, experiment = (
        HParamsPluginData.FromString(events.SummaryMetadata(f"_hparams_/{part}").plugin_data.content)
        for part in ("session_start_info", "experiment")
    )
    assert session.session_start_info.hparams.keys() == {"seed", "order", "init"}
    assert session.session_start_info.hparams["order"].string_value == "topo, bfs"
    metrics = [metric.name.tag for metric in experiment.experiment.metric_infos]
    assert metrics[0] == "compare/to_annealing"
    assert set(metrics) <= MEANINGS.keys()


def test_a_full_disk_is_an_error_at_once_and_leaves_what_was_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    board, file = EventWriter(tmp_path), MetricsFile(tmp_path / "metrics.jsonl")
    for output in (board, file):
        log(output, 10, {UPDATES: 1, SCORE: 3})
    (events,) = tmp_path.glob("events.*")
    for output, path in ((board, events), (file, tmp_path / "metrics.jsonl")):
        with files_up_to(path.stat().st_size + 8), pytest.raises(OSError, match=r"large|space"):
            log(output, 20, {UPDATES: 2, SCORE: 3})
        with files_up_to(path.stat().st_size), suppress(OSError):
            output.close()
    assert EventAccumulator(str(tmp_path)).Reload().Scalars(SCORE)[0].value == 3
    assert MetricsFile(tmp_path / "metrics.jsonl").last_update == 1
    assert capfd.readouterr().err == ""


def test_the_bar_and_its_lines_fit_80_columns() -> None:
    shown = io.StringIO()
    bar = ProgressBar(Console(file=shown, force_terminal=True, width=80, highlight=False))
    bar.announce("annealing 1,029 graphs to compare with", 0.1)
    bar._progress.refresh()
    model: Any = SimpleNamespace(logger=Logger(None, []), num_timesteps=98_765_432, ending="")
    bar.init_callback(model)
    for model.updates in (0, 1):
        model._current_progress_remaining = 0.5
        for name, value in {SPEED: 12_345.6, SCORE: 0.7, VALIDATION: 0.7, HELD_OUT: 0.7}.items():
            model.logger.record(name, value)
        if not model.updates:
            bar.on_training_start({}, {})
        bar.on_rollout_start()
    bar.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", shown.getvalue())
    assert "annealing 1,029 graphs to compare with" in text
    assert text.count("   decisions    score  validation  held out  decisions/s") == 1
    assert text.count("  98,765,432    0.700       0.700     0.700       12,346") == 2
    assert "score 0.700  12,346 decisions/s" in text
    assert "…" not in text
    assert max(map(len, re.split(r"[\r\n]", text))) <= 80
