"""The sealed set and comparisons at equal time."""

from __future__ import annotations

import math

import pytest

from agent.evaluation.spec import placer_names
from agent.experiments.equal_time.answer import budgets_table, stopping_table
from agent.experiments.equal_time.figure import draw_quality_over_time, shown
from agent.experiments.equal_time.paired import Paired, pair
from agent.experiments.equal_time.sealed import FIRST_SEED, KEPT, LARGE, NEW, sealed_graphs
from agent.experiments.experiment import EXPERIMENTS
from agent.policy.serialization import read_card
from graphs.families import FAMILIES
from graphs.io.graph_files import read_graphs
from graphs.system.errors import InputError
from tests.agent.evaluation_cases import make_trial


def test_the_graphs_that_are_kept_were_never_seen_and_no_training_can_name_their_families() -> None:
    card, graphs = read_card("pretrained"), read_graphs(KEPT)
    for graph in graphs:
        assert graph.n_ops > (3_000 if graph.family in LARGE else 100)
        assert card.how_seen(graph) == "no"
        assert {"forward", "backward", "optimizer"} <= set(graph.phases)
    assert list(dict.fromkeys(graph.family for graph in graphs)) == [*NEW, *LARGE]
    assert not {*NEW, *LARGE} & set(FAMILIES)


def test_sealed_draws_are_none_of_those_that_anything_was_tuned_on() -> None:
    assert max(FAMILIES.values()) <= FIRST_SEED
    card = read_card("pretrained")

    def graphs(first_seed: int = FIRST_SEED) -> list[str]:
        found = sealed_graphs(
            n_known=2,
            n_new=1,
            how_seen=card.how_seen,
            families=("vit", "unet"),
            first_seed=first_seed,
        )
        assert all(card.how_seen(graph) == "no" for graph in found)
        return [graph.name for graph in found]

    names = graphs()
    assert names == ["vit-1000", "vit-1002", "unet-1000"], "vit-1001 has the structure of a seen one"
    assert graphs() == names
    assert graphs(1002)[0] == "vit-1002"
    with pytest.raises(InputError, match="sealed from 1000 on"):
        graphs(3)
    with pytest.raises(InputError, match="only 0 draws of unet from seed 5000 on"):
        graphs(5000)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(InputError, match="no sealed family none; use some of cifar10"):
        sealed_graphs(n_known=1, n_new=1, how_seen=lambda graph: "no", families=("none",))


def test_placers_are_compared_in_pairs() -> None:
    trials = [
        make_trial(family=family, graph=f"{family}{graph}", placer=placer, seed=seed, step_time_s=step_s)
        for family, graph, seed in (("f", 0, 0), ("f", 0, 1), ("g", 1, 0))
        for placer, step_s in (("refine", 1.0), ("policy", 1.1 if family == "f" else 0.5), ("level", 1.0))
    ]
    trials.append(make_trial(family="h", graph="h2", placer="refine", feasible=False))
    trials.append(make_trial(family="h", graph="h2", placer="policy"))
    found = {each.placer: each for each in pair(trials, "refine", 1.0)}
    policy = found["policy"]
    assert policy.ratio == pytest.approx(math.sqrt(1.1 * 0.5))
    assert (policy.wins, policy.losses, policy.graphs) == (1, 1, 2)
    assert policy.low <= policy.ratio <= policy.high
    assert (found["level"].wins, found["level"].losses, found["level"].low) == (0, 0, 1.0)
    rows = [*found.values(), *pair(trials[:1], "refine", 3.0)]
    (line,) = budgets_table(rows, ["policy", "none"]).splitlines()[2:]
    assert line == f"| policy | {policy.cell} |  |  |"
    assert budgets_table(rows[:3], ["policy"]).endswith("| 1 : 1 |")


def test_a_placer_that_stops_is_compared_with_the_next_budget_above_its_time() -> None:
    rows = [
        row
        for seconds in (0.1, 1.0, 10.0)
        for row in pair(
            [make_trial(placer=name, cpu_s=0.5) for name in ("refine", "heft")], "refine", seconds
        )
    ]
    (line,) = stopping_table(rows, ["heft", "m-etf"]).splitlines()[2:]
    assert line.startswith("| heft | 0.500 | ")
    assert line.endswith(" | 1 s | 1.000 (1.000 to 1.000) |")


def test_the_placers_of_all_pages_exist() -> None:
    named = {
        placer
        for experiment in EXPERIMENTS.values()
        for placer in (*experiment.fixed.get("searches", ()), *experiment.fixed.get("stopping", ()))
    }
    assert {"exact", "policy-refine"} < named <= set(placer_names())


def test_the_figure_has_every_placer() -> None:
    trials = [make_trial(placer=placer, cpu_s=0.5) for placer in ("refine", "policy", "heft")]
    drawn = draw_quality_over_time(
        [each for seconds in (0.1, 1.0) for each in pair(trials, "refine", seconds)]
    )
    assert drawn.startswith(b"<?xml")
    for name in (b">refine<", b">policy<", b">heft<", b"processor seconds"):
        assert name in drawn


def test_the_figure_shows_budgets_that_were_kept_and_one_point_of_what_stops_by_itself() -> None:
    def of(placer: str, cpu_s: dict[float, float], step_s: dict[float, float]) -> list[Paired]:
        trials = {
            seconds: [
                make_trial(placer="refine"),
                make_trial(placer=placer, cpu_s=cpu_s[seconds], step_time_s=step_s[seconds]),
            ]
            for seconds in cpu_s
        }
        found = [each for seconds in trials for each in pair(trials[seconds], "refine", seconds)]
        return [each for each in found if each.placer == placer]

    slow = {0.01: 0.08, 0.1: 0.11, 1.0: 1.0}
    search = of("annealing", slow, {0.01: 1.0, 0.1: 0.8, 1.0: 0.5})
    assert [each.seconds for each in shown(search)] == [0.1, 1.0]
    once = of("heft", {0.01: 0.004, 0.1: 0.002, 1.0: 0.003}, dict.fromkeys(slow, 1.0))
    assert [each.cpu_s for each in shown(once)] == [0.003]
