"""Simulated steps worked out by hand, and what the rules of hosts and copies never do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.cluster.cluster import Cluster
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem, step_time_s
from graphs import OpGraph, build_graph
from tests.envs.hand_made_problems import cluster_of
from tests.envs.random_problems import random_cluster, random_graph, random_placement, with_slowdown

SEEDS = st.integers(0, 2**32 - 1)
Tensors = list[tuple[int, float, list[int]]]


def gpus(n_devices: int = 2, slowed: tuple[float, ...] = (), **rules: Any) -> Cluster:
    """Builds devices with links of 1 byte a second and 0.5 s of latency.

    Args:
        slowed: how many times as long the ops of each device take while copies run.
    """
    kinds = ["a"] * (len(slowed) or n_devices)
    return with_slowdown(cluster_of(*kinds, latency_s=0.5, **rules), slowed or 1.0)


def graph_of(seconds: tuple[float | None, ...], tensors: Tensors) -> OpGraph:
    """Builds ops that take some seconds; None = an input."""
    ops = [
        {"name": f"op{index}"} | ({"type": "input"} if each is None else {"seconds": {"a": each}})
        for index, each in enumerate(seconds)
    ]
    return build_graph("g", "", ops, tensors)


EAGER, PER_TENSOR, AT_ONCE = (
    {"copies": "eager"},
    {"transfer_per": "tensor"},
    {"issue_s": 4.0, "issue_per": "step"},
)
TO_OP_1, TO_BOTH = [(0, 4.0, [1])], [(0, 1.0, [1, 2])]
CHAIN = [(0, 1.0, [1]), (1, 1.0, [2]), (2, 1.0, [3])]
TIMELINES: dict[
    str, list[tuple[tuple[float | None, ...], Tensors, Cluster, tuple[int, ...], list[float]]]
] = {
    "op b, which reads over the link, comes before c in the program": [
        ((1, 1, 1.5), [(0, 1.0, [1])], gpus(), (0, 1, 1), [0, 2.5, 3.5]),
        ((1, 1, 1.5), [(0, 1.0, [1])], gpus(schedule="fifo"), (0, 1, 1), [0, 2.5, 0]),
    ],
    "a tensor crosses to a device once": [((1, 1, 1), [(0, 3.0, [1, 2])], gpus(), (0, 1, 1), [0, 4.5, 5.5])],
    "ops of all devices are issued one after the other": [
        ((5, 1, 1), [], gpus(3, issue_s=2.0), (0, 1, 2), [2, 4, 6])
    ],
    # op0 is issued at 1 and ends at 2; op1 at 2, runs on d1 to 3; the copy at 3, it ends at 7 and arrives at
    # 7.5; op2, issued at 4, waits for it; op3 on d0, issued at 5, does not.
    "a copy is issued right before the first op that needs it": [
        ((1, 1, 1, 1), [(0, 4.0, [2])], gpus(issue_s=1.0), (0, 1, 1, 0), [1, 2, 7.5, 5])
    ],
    "a second reader needs no further copy": [
        ((1, 1, 1), TO_BOTH, gpus(issue_s=4.0), (0, 1, 1), [4, 12, 16])
    ],
    "sources and ops that take no time are not issued": [
        (
            (None, 1, 0, 1),
            [(at, 0.0, [at + 1]) for at in range(3)],
            gpus(issue_s=3.0),
            (0, 0, 0, 0),
            [0, 3, 4, 6],
        )
    ],
    "one transfer to all devices is issued once": [
        ((1, 1, 1), TO_BOTH, gpus(3, issue_s=4.0, **PER_TENSOR), (0, 1, 2), [4, 12, 16]),
        ((1, 1, 1), TO_BOTH, gpus(3, issue_s=4.0), (0, 1, 2), [4, 12, 20]),
    ],
    # It starts when op1 has left d0 at 3 and op0 d1 at 1, and arrives at 3 + 2 + 0.5.
    "an eager copy occupies both devices until it arrives": [
        ((1, 3, 1, 1), [(1, 2.0, [2])], gpus(**EAGER), (1, 0, 1, 0), [0, 0, 5.5, 5.5]),
        ((1, 3, 1, 1), [(1, 2.0, [2])], gpus(), (1, 0, 1, 0), [0, 0, 5.5, 3]),
    ],
    # The tensor of op0 is there at 1, but d0 is busy to 5 and d1 to 8.
    "an eager copy waits for what its devices run": [
        ((1, 4, 8, 1), [(0, 1.0, [3])], gpus(**EAGER), (0, 0, 1, 1), [0, 1, 0, 9.5]),
        ((1, 4, 8, 1), [(0, 1.0, [3])], gpus(), (0, 0, 1, 1), [0, 1, 0, 8]),
    ],
    "eager copies to one op come one after the other": [
        ((1, 1, 1), [(0, 2.0, [2]), (1, 2.0, [2])], gpus(3, **EAGER), (0, 1, 2), [0, 0, 6]),
        ((1, 1, 1), [(0, 2.0, [2]), (1, 2.0, [2])], gpus(3), (0, 1, 2), [0, 0, 3.5]),
    ],
    "a transfer of the half size runs at half of the bandwidth": [
        ((1, 1), TO_OP_1, gpus(n_half_bytes=np.array([[9.0, 4.0], [1.0, 9.0]])), (0, 1), [0, 1 + 8 + 0.5]),
        ((1, 1), TO_OP_1, gpus(n_half_bytes=np.array([[9.0, 4.0], [1.0, 9.0]])), (1, 0), [0, 1 + 5 + 0.5]),
    ],
    "one transfer to all takes the largest half size": [
        (
            *((1, 1), TO_OP_1),
            gpus(3, n_half_bytes=np.array([[0.0, 1.0, 6.0], [0.0] * 3, [0.0] * 3]), **PER_TENSOR),
            *((0, 1), [0, 1 + 10 + 0.5]),
        )
    ],
    # op1 lets the copy run from 1 to 5; op2 starts beside it and makes half as much headway until 5.
    "an op is slowed while a copy issued before it runs": [
        ((1, 1, 10, 1), TO_OP_1, gpus(slowed=(2.0, 1.0)), (0, 1, 0, 0), [0, 5.5, 1, 13]),
        ((1, 1, 1, 1), TO_OP_1, gpus(slowed=(2.0, 1.0)), (0, 1, 0, 0), [0, 5.5, 1, 3]),
        ((1, 1, 10, 1), TO_OP_1, gpus(slowed=(1.0, 2.0)), (0, 1, 0, 0), [0, 5.5, 1, 11]),
    ],
    # The copy runs from 1 to 5; beside it op1 runs to 4 on d0, op2 to 8 on d1, at half and a quarter of their
    # speed. op3 reads the copy, op4 does not.
    "ops issued before a copy make its devices late": [
        (
            (1, 3, 8, 1, 1),
            [(0, 4.0, [3])],
            gpus(slowed=(2.0, 4.0)),
            (0, 0, 1, 1, 0),
            [0, 1, 0, 8 + 4 * 0.75, 5.5],
        )
    ],
    # op1 runs to 2 and is late by half a second, but its device waits for the copy until 5.5.
    "a device makes up for being late while it waits": [
        ((1, 2, 1, 1), [(0, 4.0, [2])], gpus(slowed=(1.0, 2.0)), (0, 1, 1, 1), [0, 0, 5.5, 6.5])
    ],
    # Over their own links, copies of op0 run from 1 to 5 and from 1 to 3; op1 runs to 11. Over a bus to 7.
    "copies at one time slow no more than one": [
        (
            *((1, 10, 1, 1, 1), [(0, 4.0, [2]), (0, 2.0, [3])]),
            *(
                gpus(slowed=(2.0, 1.0, 1.0), sharing=sharing),
                (0, 0, 1, 2, 0),
                [0, 1, 5.5, arrives, 11 + late],
            ),
        )
        for sharing, arrives, late in (("pair", 3.5, 4 * 0.5), ("egress", 7.5, 6 * 0.5))
    ],
    "a step that is issued at once waits for the host once": [
        ((1, 1, 0, 1), CHAIN, gpus(**AT_ONCE), (0, 0, 0, 0), [4, 5, 6, 6]),
        ((1, 1, 0, 1), CHAIN, gpus(**AT_ONCE), (0, 1, 1, 1), [4, 6.5, 7.5, 7.5]),
    ],
    "what is sent from the start is issued with the step": [
        ((None, 1), [(0, 1.0, [1])], gpus(**AT_ONCE), (0, 1), [0, 4 + 1 + 0.5])
    ],
}


@pytest.mark.parametrize("what", TIMELINES)
def test_ops_start_when_they_do_by_hand(what: str) -> None:
    for seconds, tensors, cluster, device_of, start_s in TIMELINES[what]:
        step = simulate_problem(Problem(graph_of(seconds, tensors), cluster), np.array(device_of))
        assert step.start_s.tolist() == start_s


def test_one_device_waits_for_a_step_with_work_alone() -> None:
    at_once = Problem(graph_of((1, 1, 0, 1), CHAIN), gpus(**AT_ONCE))
    assert at_once.single_device_s.tolist() == [7.0, 7.0]
    idle = Problem(graph_of((0, 0), []), gpus(**AT_ONCE))
    assert idle.single_device_s.tolist() == [0.0, 0.0]
    assert step_time_s(idle, np.zeros(2, dtype=np.int64)) == 0.0
    # Issued at 1, 2, 3 and 4; run from 1 to 1.5, 2 to 5, 5.25 to 5.75 and 6 to 6.5.
    for copies in ("stream", "eager"):
        gaps = Problem(graph_of((0.5, 3, 0, 0.5, 0.5), []), gpus(issue_s=1.0, op_gap_s=0.25, copies=copies))
        assert gaps.single_device_s.tolist() == [6.5, 6.5]


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.floats(1.0, 10.0), st.floats(0.01, 4.0))
def test_no_op_starts_earlier_because_of_copies_nor_later_if_all_is_issued_at_once(
    seed: int, slowdown: float, issue_s: float
) -> None:
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng, 40), random_cluster(rng, 3, schedule="program")
    device_of, plain = random_placement(rng, graph, 3), with_slowdown(cluster, 1.0)
    alone, beside = (
        simulate_problem(Problem(graph, with_slowdown(cluster, by)), device_of) for by in (1.0, slowdown)
    )
    assert (beside.start_s >= alone.start_s).all()
    assert (beside.finish_s >= alone.finish_s).all()
    at_once, one_by_one = (
        simulate_problem(Problem(graph, replace(plain, issue_s=issue_s, issue_per=per)), device_of).finish_s
        for per in ("step", "op")
    )
    assert (at_once <= one_by_one).all()
