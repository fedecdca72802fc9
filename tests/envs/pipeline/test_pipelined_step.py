"""Pipelined steps equal a plain simulation, answers of others, and the step for one microbatch; schedules."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed.pipelining.schedules as torch_schedules
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.pipeline.view import stage_rows
from envs.cluster.cluster import Cluster, Device
from envs.cluster.files import cluster_from_json
from envs.cluster.presets import get_cluster
from envs.pipeline.chain import chain_of
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.schedules import BACKWARD, FORWARD, WEIGHT, device_actions
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages, cut_into_stages, stages_of
from envs.placements.files import placement_from_json, placement_to_json
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs import OpGraph, build_graph
from graphs.dataset import load_family
from graphs.io.graph_files import read_graphs
from graphs.system.errors import InputError
from tests.envs.hand_made_problems import cluster_of
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_stages, random_training_graph
from tests.specification.pipelined_step import plain_step

DATA = Path(__file__).parent / "data"
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b:1", "interleaved-1f1b:2", "interleaved-1f1b:3", "zero-bubble")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    schedule=st.sampled_from(SCHEDULES),
    rounds=st.integers(1, 3),
    recomputes=st.sampled_from([0.0, 0.5, 1.0]),
    ties=st.booleans(),
)
def test_pipelined_step_is_that_of_the_plain_simulation(
    seed: int, schedule: str, rounds: int, recomputes: float, ties: bool
) -> None:
    rng = np.random.default_rng(seed)
    n_ranks = int(rng.integers(1, 5))
    microbatches = n_ranks * rounds if rounds > 1 else int(rng.integers(1, n_ranks + 1))
    pipeline = Pipeline(schedule, microbatches)
    cluster = random_pipeline_cluster(rng, int(rng.integers(n_ranks, 6)))
    n_layers = int(rng.integers(n_ranks * pipeline.stages_per_device, 16))
    graph = random_training_graph(rng, n_layers)
    modules = tuple(f"layer{name[1:]}" for name in graph.op_names) if ties else graph.modules
    problem = Problem(replace(graph, modules=modules), cluster)
    stages = random_stages(rng, problem, n_ranks, pipeline.stages_per_device)
    recomputed = np.flatnonzero(rng.random(len(stages.devices)) < recomputes)
    check_is_plain(problem, pipeline, replace(stages, recomputed=tuple(recomputed.tolist())))


def check_is_plain(problem: Problem, pipeline: Pipeline, stages: Stages) -> None:
    split, placed = PipelinedProblem(problem, pipeline).with_copies(stages)
    plain = plain_step(split.problem, pipeline, placed)
    try:
        found = PipelinedProblem(problem, pipeline).simulate(stages)
    except PipelineError:
        assert plain is None
        return
    assert plain is not None
    assert found.total_s == pytest.approx(plain.total_s, rel=1e-12)
    busy_s = sum(plain.finish_s[each] - plain.start_s[each] for each in plain.start_s)
    assert found.busy_s.sum() == pytest.approx(busy_s, rel=1e-9)
    resident = np.bincount(placed.device_of, split.problem.graph.resident_bytes, problem.n_devices)
    peak = [plain.peak_bytes(device, float(held)) for device, held in enumerate(resident)]
    np.testing.assert_allclose(found.peak_bytes, peak, rtol=1e-9, atol=1e-12)
    held = PipelinedProblem(problem, pipeline).memory(stages, 20)
    np.testing.assert_allclose(held.max(axis=1), peak, rtol=1e-9, atol=1e-9)
    limits = np.where(np.arange(problem.n_devices) % 2, 0.7, 1.1) * found.peak_bytes + 1.0
    limited = PipelinedProblem(problem.with_memory(limits), pipeline)
    over_bytes = np.maximum(found.peak_bytes - limits, 0.0).sum()
    assert limited.score(stages) == pytest.approx((over_bytes, found.total_s), rel=1e-9)


@pytest.mark.parametrize(
    ("sharing", "transfer_per", "total_s"),
    [("egress", "destination", 10.0), ("egress", "tensor", 7.5), ("pair", "destination", 7.5)],
)
def test_an_egress_bus_carries_copies_one_after_the_other(
    sharing: str, transfer_per: str, total_s: float
) -> None:
    """Op 0 ends at 1 and 2 s; its copies take 2 s each, to ops 1 and 2; that to op 2 from op 1 0.5 s."""
    ops = [{"name": f"op{layer}", "type": "aten.mm", "seconds": {"test": 1.0}} for layer in range(3)]
    graph = build_graph("skip", "", ops, [(0, 2.0, [1, 2]), (1, 0.5, [2])])
    cluster = cluster_of("test", "test", "test", sharing=sharing, transfer_per=transfer_per)
    problem = Problem(graph, cluster)
    pipelined = PipelinedProblem(problem, Pipeline("gpipe", 2))
    assert pipelined.simulate(cut_into_stages(problem, np.arange(3))).total_s == total_s


def tied_graph(n_copies: int) -> OpGraph:
    """An embedding and a head with one weight; their gradients are added at the end of each microbatch, or,
    where each has a copy of the weight, of the step."""
    copies = range(n_copies)
    phase = {"phase": "backward" if n_copies == 1 else "optimizer"}
    ends = ["", ".tied"]
    ops: list[dict[str, object]] = [
        *(
            {"name": f"w{ends[at]}", "type": "parameter", "resident_bytes": 16, "colocate": at}
            for at in copies
        ),
        {"name": "embed", "colocate": 0, "module": "embed"},
        {"name": "head", "module": "head"},
        {"name": "of head", "phase": "backward", "colocate": 1 if n_copies == 2 else None},
        {"name": "of embed", "phase": "backward", "colocate": 0 if n_copies == 2 else None},
        *({"name": f"add{ends[at]}", "type": "aten.add", "colocate": at, **phase} for at in copies),
        *({"name": f"update{ends[at]}", "phase": "optimizer", "colocate": at} for at in copies),
    ]
    for op in ops:
        seconds = 0.0 if op.get("type") == "parameter" else 0.1 * len(str(op["name"]).removesuffix(".tied"))
        op |= {"type": op.get("type", "aten.mm"), "seconds": {"test": seconds}}
    index = {str(op["name"]): at for at, op in enumerate(ops)}
    adds = [index[f"add{ends[at]}"] for at in copies]
    tensors = [
        ("embed", 1.0, ["head", "of embed"]),
        ("head", 1.0, ["of head"]),
        ("of head", 1.0, ["of embed"]),
    ]
    rows = [(index[maker], size, [index[reader] for reader in readers]) for maker, size, readers in tensors]
    rows += [(index[maker], 4.0, adds) for maker in ("of head", "of embed")]
    rows += [(add, 4.0, [index[f"update{ends[at]}"]]) for at, add in zip(copies, adds, strict=True)]
    of_head = [index["head"], index["of head"]]
    weights = [[index["embed"], *of_head]] if n_copies == 1 else [[index["embed"]], of_head]
    rows += [(at, 4.0, readers) for at, readers in zip(copies, weights, strict=True)]
    return build_graph("tied", "", ops, rows)


@pytest.mark.parametrize("microbatches", [1, 2, 5])
def test_tied_tensors_are_held_by_both_stages(microbatches: int) -> None:
    one, two = tied_graph(1), tied_graph(2)
    devices = tuple(Device(f"d{index}", "test", 1e3, 1.0, 1.0, 0.5) for index in range(2))
    cluster = Cluster("two", devices, np.ones((2, 2)), np.full((2, 2), 0.1), sharing="pair")
    pipeline = Pipeline("1f1b", microbatches)

    def stages_on(graph: OpGraph, devices: list[int]) -> Stages:
        is_last = [name.endswith(("head", ".tied")) for name in graph.op_names]
        return cut_into_stages(Problem(graph, cluster), np.where(is_last, devices[1], devices[0]))

    tied = PipelinedProblem(Problem(one, cluster), pipeline)
    apart, together = stages_on(one, [0, 1]), stages_on(one, [0, 0])
    assert tied.with_copies(together) == (tied, together)
    assert (tied.with_copies(apart)[0] is tied) == (microbatches == 1)
    if microbatches > 1:
        plain = plain_step(Problem(two, cluster), pipeline, stages_on(two, [0, 1]))
        assert plain is not None
        found = tied.simulate(apart)
        assert found.total_s == pytest.approx(plain.total_s, rel=1e-12)
        assert found.peak_bytes == pytest.approx([plain.peak_bytes(device, 16.0) for device in (0, 1)])
        assert tied.with_copies(apart)[0].problem.graph.op_names == two.op_names


def test_a_tied_head_may_be_a_stage_of_its_own() -> None:
    graph = next(each for each in load_family("gpt") if each.name == "gpt-01")
    pipelined = PipelinedProblem(Problem(graph, get_cluster("4xv100")), Pipeline("1f1b", 3))
    head = graph.op_names.index("head/mm")
    first = np.array([0, 7, int(pipelined.chain.piece_of[head])])
    stages = pipelined.chain.stages(first, np.arange(3))
    split, placed = pipelined.with_copies(stages)
    names = split.problem.graph.op_names
    assert len(set(names) - set(graph.op_names)) == 3
    for name in ("gradients/head/mm", "gradients/head/mm_1", "embedding.word.weight.tied"):
        assert placed.device_of[names.index(name)] == 2
    check_is_plain(pipelined.problem, pipelined.pipeline, stages)
    weight = graph.op_names.index("embedding.word.weight")
    *_, row = stage_rows(pipelined, stages, pipelined.simulate(stages))
    assert row.resident_bytes == graph.resident_bytes[weight]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_one_microbatch_is_the_step_of_the_program(schedule: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        cluster = replace(random_pipeline_cluster(rng, 4), issue_s=0.0)
        cluster = replace(cluster, sharing="pair" if cluster.sharing == "egress" else cluster.sharing)
        problem = Problem(random_training_graph(rng, 12), cluster)
        stages = random_stages(rng, problem, 4, 1)
        found = PipelinedProblem(problem, Pipeline(schedule, 1)).simulate(stages)
        step = simulate_problem(problem, stages.device_of)
        assert found.total_s == pytest.approx(step.total_s, rel=1e-12)
        np.testing.assert_allclose(found.peak_bytes, step.peak_bytes, rtol=1e-12)


def test_stages_are_those_of_their_placement_file() -> None:
    graph, cluster = load_family("gpt")[0], get_cluster("4xv100")
    problem = Problem(graph, cluster)
    stages = chain_of(problem).stages(np.array([0, 9]), np.array([1, 2]), recomputed=(1,))
    record = json.loads(json.dumps(placement_to_json(graph, cluster, stages.placement)))
    assert record["recompute"] == [1]
    again = stages_of(problem, placement_from_json(record, "file").resolve(graph, cluster))
    assert again.recomputed == stages.recomputed
    assert again.stage_of.tolist() == stages.stage_of.tolist()
    for key, value, message in (
        ("recompute", [2], "there is no stage 2; the stages are 0 to 1"),
        ("recompute", 1, "file: recompute: is a number; expected an array"),
        ("replicas", {}, "file: unknown key .replicas.|replicas"),
    ):
        with pytest.raises(InputError, match=message):
            stages_of(problem, placement_from_json(record | {key: value}, "file").resolve(graph, cluster))


def test_devices_that_would_wait_for_each_other_are_one_line() -> None:
    problem = Problem(load_family("gpt")[0], get_cluster("4xv100"))
    pipelined = PipelinedProblem(problem, Pipeline("interleaved-1f1b:2", 2))
    stages = pipelined.chain.stages(np.array([0, 5, 9, 14]), np.array([0, 1, 0, 1]))
    first = problem.graph.phases.index("backward")  # of stage 3, moves into stage 0
    moved = np.where(np.arange(problem.graph.n_ops) == first, 0, [stages.device_of, stages.stage_of])
    with pytest.raises(PipelineError, match="devices wait for each other; place each backward op where"):
        pipelined.simulate(replace(stages, device_of=moved[0], stage_of=moved[1]))


def test_reference_answers_are_met() -> None:
    graphs = {graph.name: graph for graph in read_graphs(DATA / "pipedream_graphs.jsonl.gz")}
    with gzip.open(DATA / "pipelined_steps.jsonl.gz", "rt") as lines:
        answers = [json.loads(line) for line in lines]
    assert len(answers) == 60
    for answer in answers:
        graph, cluster = graphs[answer["graph"]], cluster_from_json(answer["cluster"], "cluster")
        named = {"graph": graph.name, "cluster": cluster.name, "device_of": answer["device_of"]}
        placement = placement_from_json({"format": "placewalk.placement/1", **named}, "placement")
        problem = Problem(graph, cluster)
        stages = cut_into_stages(problem, placement.resolve(graph, cluster).device_of)
        pipeline = Pipeline(answer["schedule"], answer["microbatches"])
        found = PipelinedProblem(problem, pipeline).simulate(stages)
        assert found.total_s == pytest.approx(answer["step_time_s"], rel=1e-9)


Kind = torch_schedules._ComputationType
KINDS = {
    Kind.FORWARD: FORWARD,
    Kind.FULL_BACKWARD: BACKWARD,
    Kind.BACKWARD_INPUT: BACKWARD,
    Kind.BACKWARD_WEIGHT: WEIGHT,
}


def orders_of_torch(schedule: Any, n_devices: int, n_each: int, microbatches: int) -> list[list[Any]]:
    """Actions of each device in torch, which makes them from a few numbers alone."""
    made = schedule.__new__(schedule)
    made.pp_group_size, made.n_local_stages, made._n_microbatches = n_devices, n_each, microbatches
    made.number_of_rounds = max(1, microbatches // n_devices)
    made.microbatches_per_round = microbatches // made.number_of_rounds
    orders = [made._calculate_single_rank_operations(rank) for rank in range(n_devices)]
    kept = [[action for action in order if action is not None] for order in orders]
    return [[(KINDS[a.computation_type], a.stage_index, a.microbatch_index) for a in order] for order in kept]


@pytest.mark.parametrize("n_devices", range(1, 6))
@pytest.mark.parametrize(
    ("name", "schedule", "n_each"),
    [
        ("interleaved-1f1b:1", torch_schedules.ScheduleInterleaved1F1B, 1),
        ("interleaved-1f1b", torch_schedules.ScheduleInterleaved1F1B, 2),
        ("interleaved-1f1b:3", torch_schedules.ScheduleInterleaved1F1B, 3),
        ("zero-bubble", torch_schedules.ScheduleInterleavedZeroBubble, 1),
    ],
)
def test_orders_are_those_of_torch(n_devices: int, name: str, schedule: Any, n_each: int) -> None:
    for microbatches in range(1, 16):
        if microbatches % max(1, microbatches // n_devices):
            with pytest.raises(PipelineError, match="rounds, which are not equal; give a multiple of"):
                device_actions(Pipeline(name, microbatches), n_devices)
            continue
        expected = orders_of_torch(schedule, n_devices, n_each, microbatches)
        found = device_actions(Pipeline(name, microbatches), n_devices)
        assert [[tuple(action) for action in each] for each in found] == expected


def test_one_forward_one_backward_keeps_few_microbatches_alive() -> None:
    for rank, actions in enumerate(device_actions(Pipeline("1f1b", 9), 4)):
        alive = most = 0
        for action in actions:
            alive += 1 if action.kind == FORWARD else -1
            most = max(most, alive)
        assert (most, alive) == (4 - rank, 0)


@pytest.mark.parametrize(
    ("schedule", "microbatches", "message"),
    [
        ("2f2b", 8, "unknown schedule '2f2b'; use gpipe, 1f1b, interleaved-1f1b:V, zero-bubble or auto"),
        ("1f1b:2", 8, "unknown schedule '1f1b:2'"),
        ("interleaved-1f1b:0", 8, "'0' is no number of stages"),
        ("1f1b", 0, "0 microbatches; a step has at least 1"),
    ],
)
def test_bad_pipelines_are_refused(schedule: str, microbatches: int, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Pipeline(schedule, microbatches)
