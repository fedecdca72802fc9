"""The sealed set, and the tables of placers in equal time."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.experiments.equal_time.sealed import FIRST_SEED, KEPT, LARGE, NEW, sealed_graphs
from agent.experiments.experiment import EXPERIMENTS
from agent.experiments.recorded.equal_time import equal_time_tables
from agent.placing.request import placer_names
from agent.policy.serialization import read_policy
from graphs.families import FAMILIES
from graphs.io.graph_files import read_graphs
from graphs.system.errors import InputError


def test_the_graphs_that_are_kept_were_never_seen_and_no_training_can_name_their_families() -> None:
    card, graphs = read_policy("pretrained").card, read_graphs(KEPT)
    for graph in graphs:
        assert graph.n_ops > (3_000 if graph.family in LARGE else 100)
        assert card.how_seen(graph) == "no"
        assert {"forward", "backward", "optimizer"} <= set(graph.phases)
    assert list(dict.fromkeys(graph.family for graph in graphs)) == [*NEW, *LARGE]
    assert not {*NEW, *LARGE} & set(FAMILIES)


def test_sealed_draws_are_none_of_those_that_anything_was_tuned_on() -> None:
    assert max(FAMILIES.values()) <= FIRST_SEED
    card = read_policy("pretrained").card

    def graphs(first_seed: int = FIRST_SEED) -> list[str]:
        found = sealed_graphs(("vit", "unet"), first_seed=first_seed, how_seen=card.how_seen)
        assert all(card.how_seen(graph) == "no" for graph in found)
        return [graph.name for graph in found]

    names = graphs()
    assert names == ["vit-1000", "unet-1000"]
    assert graphs() == names
    assert graphs(1001)[0] == "vit-1002", "vit-1001 has the structure of a seen one"
    with pytest.raises(InputError, match="sealed from 1000 on"):
        graphs(3)
    with pytest.raises(InputError, match="no draw of unet from seed 5000 on"):
        graphs(5000)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(InputError, match="no sealed family none; use some of cifar10"):
        sealed_graphs(("none",))


def test_a_placer_that_stops_is_compared_with_the_next_budget_above_its_time(tmp_path: Path) -> None:
    rows = [
        f"{placer},{seconds},{ratio},{ratio},{ratio},0.7,1,2,{cpu_s}"
        for seconds, ratio in ((0.01, 0.6), (0.1, 0.9), (1.0, 1.0), (10.0, 1.1))
        for placer, cpu_s in (("refine", seconds), ("heft", 0.5))
    ]
    head = "placer,seconds,ratio,low,high,to_single,wins,losses,cpu_s"
    (tmp_path / "rows.csv").write_text("\n".join([head, *rows]))
    searched, stopped = equal_time_tables(tmp_path / "rows.csv", ("refine",), ("heft",))
    assert searched.splitlines()[2:] == [
        "| refine | 0.900 (0.900 to 0.900) | 1.000 (1.000 to 1.000) | 1.100 (1.100 to 1.100) | 1 : 2 |"
    ]
    assert stopped.splitlines()[2:] == ["| heft | 0.500 | 0.700 | 1 s | 1.000 (1.000 to 1.000) |"]


def test_the_placers_of_all_pages_exist() -> None:
    named = {
        placer
        for experiment in EXPERIMENTS.values()
        for placer in (*experiment.fixed.get("searches", ()), *experiment.fixed.get("stopping", ()))
    }
    assert {"exact", "policy-refine"} < named <= set(placer_names())
