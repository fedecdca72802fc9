"""Transfers: a log takes back the sends it holds, and an estimate equals a send over a free link."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.cluster.cluster import Cluster
from envs.problem import Problem
from envs.problem_arrays import SENDS_PER_TENSOR
from envs.simulator.arrays import UNSENT, empty_timeline, n_clocks
from envs.simulator.kernels import issue
from envs.simulator.transfers import SendLog, reserve, rollback, transfer_seconds
from graphs import OpGraph
from graphs.system.jit import kernel
from tests.envs.random_problems import problems

Case = tuple[OpGraph, Cluster, np.ndarray]


@kernel(entry=True)
def issue_ops(p, device_of, timeline, first, last, log):  # type: ignore[no-untyped-def]
    for op in range(first, last):
        issue(p, device_of, timeline, op, log)


@kernel(entry=True)
def roll_back(timeline, log, n_kept):  # type: ignore[no-untyped-def]
    rollback(timeline, log, n_kept)


@kernel(entry=True)
def send_free(p, tensor, source, target, free, seconds):  # type: ignore[no-untyped-def]
    seconds[0] = reserve(p, free, tensor, source, target, 0.0) + p.latency[source, target]
    seconds[1] = transfer_seconds(p, p.size[tensor], source, target)


@settings(max_examples=100, deadline=None)
@given(problems(), st.floats(0.0, 1.0))
def test_rollback_takes_back_what_was_sent_since(case: Case, share: float) -> None:
    graph, cluster, device_of = case
    arrays, middle = Problem(graph, cluster).arrays, int(share * graph.n_ops)
    timeline = empty_timeline(graph.n_ops, graph.n_tensors, cluster.n_devices)
    log = SendLog(np.zeros(len(timeline.sent), dtype=np.int32), np.zeros(1, dtype=np.int64))
    issue_ops(arrays, device_of, timeline, 0, middle, log)
    n_kept, sent, arrival = int(log.n[0]), timeline.sent.copy(), timeline.arrival.copy()
    issue_ops(arrays, device_of, timeline, middle, graph.n_ops, log)
    filled = np.flatnonzero(timeline.sent != UNSENT)
    assert sorted(log.slot[: log.n[0]].tolist()) == filled.tolist()
    roll_back(timeline, log, n_kept)
    np.testing.assert_array_equal(timeline.sent, sent)
    np.testing.assert_array_equal(timeline.arrival, arrival)
    roll_back(timeline, log, 0)
    assert (timeline.sent == UNSENT).all()
    assert (timeline.arrival == UNSENT).all()


@settings(max_examples=50, deadline=None)
@given(problems())
def test_the_estimate_is_a_send_over_a_free_link(case: Case) -> None:
    graph, cluster, device_of = case
    arrays, seconds = Problem(graph, cluster).arrays, np.zeros(2)
    for tensor in range(graph.n_tensors):
        for target in range(cluster.n_devices):
            source = int(device_of[graph.tensor_producer[tensor]])
            if target != source and not arrays.rules[SENDS_PER_TENSOR]:
                send_free(arrays, tensor, source, target, np.zeros(n_clocks(cluster.n_devices)), seconds)
                assert seconds[0] == pytest.approx(cluster.issue_s + seconds[1])
