"""Training: it learns what is known to be best, a seed gives one run, and a killed run goes on."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest
import torch

from agent.contexts.local import closing_lines
from agent.learn import evaluation
from agent.learn import train as training
from agent.learn.config import ConfigError
from agent.learn.evaluation import LOG_SPACED, is_better
from agent.learn.metrics import HELD_OUT, MEANINGS, OVER_SEARCH, SCORE, VALIDATION, as_markdown
from agent.learn.problems import problems_of
from agent.learn.train import Result, train
from agent.placers.base import PLACERS, Budget, Placer, SearchState
from agent.policy.serialization import load_policy, read_policy
from envs.problem import Problem
from tests.agent.learn.train_cases import SMALL, MemoryContext, chains, numbers

LEARNING = replace(SMALL, timesteps=12_000, learning_rate=5e-3)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, MemoryContext]:
    """A training that finds what is best."""
    context = MemoryContext(tmp_path_factory.mktemp("learned"))
    return train(LEARNING, context), context


def test_learns_to_spread_independent_chains(learned: tuple[Result, MemoryContext]) -> None:
    result, context = learned
    assert result.finished
    assert result.best_score == pytest.approx(0.25, abs=0.01)
    assert context.rows[-1][HELD_OUT] < 0.4


@pytest.mark.parametrize("change", [{"advantage": "graph"}, {"feature_set": "state"}])
def test_what_is_left_out_makes_another_policy_that_still_learns(
    tmp_path: Path, learned: tuple[Result, MemoryContext], change: dict[str, str]
) -> None:
    context = MemoryContext(tmp_path)
    train(replace(LEARNING, timesteps=6_000, **change), context)
    assert numbers(context)[1] != numbers(learned[1])[1]
    assert context.rows[-1][HELD_OUT] < 0.6


def test_the_best_policy_is_kept_with_what_it_saw(tmp_path: Path) -> None:
    context = MemoryContext(tmp_path)
    result = train(SMALL, context)
    assert result.cut_short == "", "without a limit"
    assert [row[VALIDATION] for row in context.rows if VALIDATION in row]
    assert result.best_score in [row.get(SCORE) for row in context.rows[1:]]
    card = read_policy(tmp_path).card
    shown = (*context.graphs.train, *context.graphs.validation)
    assert [card.how_seen(graph) for graph in shown] == ["yes"] * 3
    assert card.how_seen(context.graphs.held_out[0]) != "yes"
    load_policy(tmp_path)


def test_the_newest_policy_is_kept_that_is_not_surely_worse_than_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, level, worse = (0.5, 0.5), (0.55, 0.48), (0.9, 0.9)
    found = chain.from_iterable(([1.0], [b], [a]) for a, b in chain([worse, best, level], repeat(worse)))
    monkeypatch.setattr(training, "MOST", 1)
    monkeypatch.setattr(evaluation, "ratios_over_orders", lambda _, one, *__: next(found))
    result = train(SMALL, MemoryContext(tmp_path))
    assert result.best_score == pytest.approx(np.prod(level) ** 0.5)
    assert is_better([0.0, 0.1, 0.0, -0.2], [0.0] * 4)
    assert not is_better([0.0, 0.3, 0.0, 0.1], [0.0] * 4), "without validation graphs, the least counts"


@pytest.mark.parametrize("stop_after", [2, 10**9])
def test_the_start_is_kept_where_no_later_policy_is_better(
    stop_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where chance might be why later ones are worse, and where the training is resumed."""
    first = MemoryContext(tmp_path / "first")
    train(replace(SMALL, timesteps=256), first)
    later = chain([(0.5, 0.5)], repeat((0.9, 0.3)))
    found = chain.from_iterable(([1.0], [b], [a]) for a, b in later)
    monkeypatch.setattr(training, "MOST", 1)
    monkeypatch.setattr(evaluation, "ratios_over_orders", lambda _, one, *__: next(found))
    config = replace(SMALL, timesteps=1024, init=str(first.folder))
    context = MemoryContext(tmp_path / "second", stop_after=stop_after)
    if not (result := train(config, context)).finished:
        context.stop_after = 10**9
        result = train(config, context)
    assert (result.best_score, result.best_timesteps) == (pytest.approx(0.5), 0)
    start, kept = (load_policy(each.folder).network.state_dict() for each in (first, context))
    assert all(torch.equal(start[name], kept[name]) for name in start)
    assert "no policy of this training places these graphs better than its start" in closing_lines(
        result, tmp_path
    )


def test_a_training_that_is_stopped_before_an_update_keeps_nothing(tmp_path: Path) -> None:
    assert not train(SMALL, MemoryContext(tmp_path, stop_after=0)).finished
    assert not (tmp_path / "policy.json").exists()


def test_comparisons_are_log_spaced_and_begin_before_the_first_update(tmp_path: Path) -> None:
    context = MemoryContext(tmp_path)
    result = train(replace(SMALL, timesteps=256 * 9, eval_every=100), context)
    assert [row["timesteps"] for row in context.rows] == [256 * n for n in range(10)]
    compared = [n for n, row in enumerate(context.rows) if SCORE in row]
    assert compared == [0, 1, 2, 3, 4, 5, 6, 8, 9], "log-spaced, and the last one"
    assert context.pictures[:2] == [(0, "eval/placed_before"), (0, "eval/placed_now")]
    assert context.pictures[2:] == [(256 * n, "eval/placed_now") for n in compared[1:]]
    assert result.gains["score"] == (context.rows[0][SCORE], context.rows[-1][SCORE])
    assert set(result.gains) == {"score", "validation", "held_out"}
    updates_of_two_minutes = range(1, 26)
    assert len(LOG_SPACED.intersection(updates_of_two_minutes)) >= 11, "and the untrained policy"


def test_updates_are_shortened_to_end_in_the_time_and_only_then(tmp_path: Path) -> None:
    long = replace(SMALL, n_steps=40_000, timesteps=10**9)
    context = MemoryContext(tmp_path / "long")
    result = train(replace(long, minutes=0.05), context)
    assert 128 <= result.timesteps < 8 * 40_000
    assert 1.5 < result.wall_s < 60.0
    assert result.finished
    assert result.cut_short == f"{result.timesteps:,} of 1,000,000,000 decisions"
    assert SCORE in context.rows[-1]
    assert context.rows[-1]["train/learning_rate"] < 0.99 * SMALL.learning_rate, "schedules follow the time"
    ample = MemoryContext(tmp_path / "ample")
    train(replace(SMALL, timesteps=512, minutes=60), ample)
    assert [row["timesteps"] for row in ample.rows] == [0, 256, 512]


def test_a_run_that_gets_more_minutes_compares_the_same_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "FEW", 1)
    context = MemoryContext(tmp_path)
    train(replace(SMALL, minutes=2, timesteps=512), context)
    assert train(replace(SMALL, minutes=20, timesteps=1024), context).finished
    saved = context.checkpoints.latest()
    assert saved is not None
    assert len(saved.state["callbacks"]["KeepPolicy"]["least"]) == 2, "one for training, one for validation"


def test_a_resumed_run_searches_and_anneals_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = MemoryContext(tmp_path, stop_after=2)
    assert not train(SMALL, context).finished

    monkeypatch.setattr(type(PLACERS["annealing"]), "place", without_annealing)
    context.stop_after = 10**9
    assert train(SMALL, context).finished


def without_annealing(placer: Placer, problem: Problem, budget: Budget, rng: np.random.Generator) -> object:
    """`Placer.place`, but for annealing."""
    assert placer.name != "annealing"
    search = SearchState(problem, budget)
    placer.strategy(search, rng)
    return search.result()


def test_nothing_to_learn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to learn; give --timesteps"):
        train(replace(SMALL, timesteps=0), MemoryContext(tmp_path))


def test_training_can_start_from_a_policy_and_what_that_saw_counts_as_seen(
    tmp_path: Path, learned: tuple[Result, MemoryContext]
) -> None:
    first, second, other = learned[1], MemoryContext(tmp_path / "second"), chains(3, 3, "other")
    second.graphs = replace(second.graphs, train=(*second.graphs.train, other))
    unchanged = replace(SMALL, learning_rate=1e-9, final_learning_rate=0, timesteps=256)
    result = train(replace(unchanged, init=str(first.folder)), second)
    assert result.best_score < 0.35
    card = read_policy(second.folder).card
    assert card.how_seen(other) == "yes"
    assert card.how_seen(first.graphs.train[0]) == "yes"
    assert card.how_seen(first.graphs.held_out[0]) != "yes"


def test_metrics_are_complete_and_each_has_a_meaning(tmp_path: Path) -> None:
    context = MemoryContext(tmp_path)
    other = replace(chains(4, 4, "other"), family="other")
    context.graphs = replace(context.graphs, held_out=(*context.graphs.held_out, other))
    train(replace(SMALL, timesteps=512), context)
    families = {"of_family/chains": "of_family/FAMILY", "of_family/other": "of_family/FAMILY"}
    logged = {families.get(name, name) for row in context.rows for name in row} - {"timesteps"}
    assert logged == set(MEANINGS)
    assert all(f"| `{name}` |" in as_markdown() for name in logged)
    assert context.rows[0].keys() >= {SCORE, OVER_SEARCH}, "curves begin with the untrained policy"


def test_references_are_those_of_annealing(tmp_path: Path) -> None:
    context = MemoryContext(tmp_path)
    train(replace(SMALL, timesteps=256), context)
    problem = problems_of(context.graphs.held_out, SMALL.cluster)[0]
    found = PLACERS["annealing"].place(problem, Budget(10_000), np.random.default_rng(0)).step_time.total_s
    row = next(row for row in context.rows if SCORE in row)
    assert row[OVER_SEARCH] == pytest.approx(row[HELD_OUT] * problem.scale_s / found)
