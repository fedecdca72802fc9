"""Instances by name: what they are, and the table of the best known answers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from agent.commands.evaluate import main
from agent.evaluation.config import EvaluationConfig, EvaluationError
from agent.evaluation.inputs import make_spec
from agent.instances.instance import (
    DATA,
    InstanceError,
    find_instances,
    find_names,
    load_instance,
    read_best_known,
    read_placements,
    sources,
)
from envs.cluster.presets import DEFAULT_CLUSTER
from envs.placements.placement import Placement
from graphs.io.graph_files import write_graphs
from graphs.op_graph import build_graph

GOLDEN = Path(__file__).parents[2] / "golden" / "doppler.jsonl.gz"
DOPPLER = {
    "chain_mm_112nodes": "chain_mm",
    "ffnn_192nodes": "ffnn",
    "transformer_block_215nodes": "transformer_block",
    "full_transformer_layer_261nodes": "transformer_layer",
}
"""Names of graphs in the golden file, and of instances."""
COUNTS = {
    "doppler": 4,
    "tarnawski": 24,
    "tarnawski-pipelines": 8,
    "placeto": 12,
    "sealed": 13,
    "pipedream": 10,
    "piper": 2,
    "adversarial": 10,
}


def spec_of(*graphs: str, **settings: object):  # type: ignore[no-untyped-def]
    return make_spec(EvaluationConfig(graphs=graphs, placers=("single",), **settings))[0]  # type: ignore[arg-type]


def test_patterns_name_instances_of_each_source() -> None:
    assert {source: len(find_names([f"{source}:*"])) for source in sources()} == COUNTS
    assert len(find_names(["*", "doppler:*"])) == sum(COUNTS.values())
    assert find_names(["tarnawski:latency-ops-bert_l-?_inference"]) == [
        "tarnawski:latency-ops-bert_l-3_inference",
        "tarnawski:latency-ops-bert_l-6_inference",
    ]
    for wrong in ("doppler:none", "nix", "doppler:../chain_mm"):
        with pytest.raises(InstanceError, match="no instance is named"):
            find_names([wrong])


def test_an_instance_is_loaded_by_its_name() -> None:
    instance = load_instance("pipedream:alexnet")
    assert instance.best_known.step_time_s >= instance.bound_s > 0
    assert (instance.source.licence, instance.pipeline.schedule) == ("MIT", "1f1b")
    axes = instance.plot().axes
    assert len(axes) == 2
    assert axes[0].get_title(loc="left").startswith("pipedream:alexnet on 4-equal by ")
    for name, hint in (("doppler:chainmm", "close to it: doppler:chain_mm"), ("x", "list_instances")):
        with pytest.raises(InstanceError, match=f"^no instance is named '{name}'; {hint}"):
            load_instance(name)


def test_dopplers_simulator_answers_alike() -> None:
    """All but ties of its events, which it breaks otherwise."""
    errors = []
    for line in gzip.decompress(GOLDEN.read_bytes()).splitlines():
        case = json.loads(line)
        (instance,) = find_instances([f"doppler:{DOPPLER[case['graph']]}"])
        devices = np.array([case["placement"][op] for op in instance.graph.op_names])
        ours_ms = instance.objective.simulate(Placement(devices)).total_s * 1e3
        errors.append(abs(ours_ms / case["running_time"] - 1))
    assert sorted(errors)[27] < 1e-6
    assert max(errors) < 2e-4


def test_the_table_has_every_instance_and_its_placements_take_what_it_says() -> None:
    known, placements = read_best_known(), read_placements()
    assert sorted(known) == sorted(placements) == sorted(find_names(["*"]))
    for instance in find_instances(["*"]):
        row = known[instance.name]
        step = instance.objective.simulate(placements[instance.name])
        assert step.fits
        assert step.total_s == pytest.approx(row.step_time_s, rel=1e-9)
        assert row.bound_s == pytest.approx(instance.bound_s, rel=1e-6)
        assert row.bound_s <= row.step_time_s * (1 + 1e-9)
        assert all((row.method, row.found_by, row.commit, row.date))
        assert row.seconds > 0


def test_the_list_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--list-graphs"])
    lines = capsys.readouterr().out.splitlines()
    assert left.value.code == 0
    assert len(lines) == sum(COUNTS.values()) + len(COUNTS)
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:3] == ["doppler:chain_mm", "1200.07", "optimal"] for line in lines)


def test_an_instance_brings_its_cluster_and_its_objective() -> None:
    spec = spec_of("doppler:chain_mm")
    assert [cluster.name for cluster in spec.clusters] == ["corgi4"]
    assert spec.pipeline is None
    assert [cluster.name for cluster in spec_of("doppler:chain_mm", cluster=("4xv100",)).clusters] == [
        "4xv100"
    ]
    pipelined = spec_of("pipedream:alexnet", "piper:*")
    assert (pipelined.pipeline.schedule, pipelined.pipeline.microbatches) == ("1f1b", 8)
    assert spec_of("pipedream:alexnet", microbatches=4).pipeline.microbatches == 4
    assert spec_of("pipedream:alexnet", pipeline="gpipe").pipeline.schedule == "gpipe"
    with pytest.raises(EvaluationError, match="have different objectives"):
        spec_of("doppler:chain_mm", "pipedream:alexnet")


def test_each_workload_is_placed_on_its_own_devices_and_a_file_on_the_default(tmp_path: Path) -> None:
    write_graphs(tmp_path / "own.json", [build_graph("own", "", [{"name": "op", "flops": 1e9}], [])])
    spec = spec_of("tarnawski:*", str(tmp_path / "own.json"))
    pairs = [(spec.graphs[task.graph].name, spec.clusters[task.cluster].name) for task in spec.tasks()]
    own = [(each.name, each.cluster.name) for each in find_instances(["tarnawski:*"])]
    assert pairs == [*own, ("own", DEFAULT_CLUSTER)]
    spec.check_feasible()
    assert spec.to_json()["home"] == dict(pairs)


def test_data_say_their_licence() -> None:
    readme = (DATA.parent / "README.md").read_text(encoding="utf-8")
    for name, source in sources().items():
        assert name in readme
        assert source.licence in readme
    for file in DATA.glob("LICENSE*"):
        assert f"data/{file.name}" in readme
