"""Demonstrations of pipelines: what each earlier or later cut costs, and their replay."""

from __future__ import annotations

import numpy as np
import pytest

from agent.pipelines.search import Cuts
from agent.policy.mdp_config import MdpConfig
from agent.training.imitation.demonstrations import LONGEST, PIPELINE_REGRET, pipeline_demonstration
from agent.training.imitation.trajectories import replay_demonstrations
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_training_graph

CUTS = Cuts((0, 14, 30), (2, 0, 1))


@pytest.fixture(scope="module")
def pipelined() -> PipelinedProblem:
    rng = np.random.default_rng(3)
    found = PipelinedProblem(
        Problem(random_training_graph(rng, 60), random_pipeline_cluster(rng, 4)), Pipeline("1f1b", 4)
    )
    assert found.chain.n_pieces >= 36
    return found


def moved_s(pipelined: PipelinedProblem, first: list[int]) -> float:
    return pipelined.step_time_s(pipelined.chain.stages(np.array(first), np.array(CUTS.ranks)))


def test_regrets_are_those_of_moved_cuts(pipelined: PipelinedProblem) -> None:
    found = pipeline_demonstration(0, pipelined, CUTS)
    chain, unit_of = pipelined.chain, pipelined.problem.graph.unit_of
    regret = {int(chain.piece_of[op]): found.regret[unit_of[op]] for op in range(len(unit_of))}
    best_s = moved_s(pipelined, [0, 14, 30])
    earlier, later = moved_s(pipelined, [0, 13, 30]), moved_s(pipelined, [0, 14, 31])
    for piece, device, total_s in ((13, 0, earlier), (30, 0, later)):
        longer = total_s / best_s - 1
        expected = PIPELINE_REGRET * longer if longer < LONGEST else np.inf
        assert regret[piece][device] == pytest.approx(expected, rel=1e-5)
    taken = np.repeat(CUTS.ranks, [14, 16, chain.n_pieces - 30])
    assert [regret[piece][taken[piece]] for piece in range(chain.n_pieces)] == [0.0] * chain.n_pieces
    assert np.isfinite(found.regret).sum() > len(found.regret)
    assert all(np.isinf(regret[piece][3]) for piece in range(chain.n_pieces))


def test_a_demonstration_is_replayed_piece_by_piece(pipelined: PipelinedProblem) -> None:
    found = pipeline_demonstration(0, pipelined, CUTS)
    [trajectory] = replay_demonstrations(
        [pipelined.problem],
        [found],
        orders=("topo",),
        mdp_config=MdpConfig(pipeline="1f1b", microbatches=4),
        seed=[0],
    )
    assert pipelined.chain.piece_of[trajectory.op].tolist() == list(range(pipelined.chain.n_pieces))
    assert trajectory.value[0] == pytest.approx(
        -moved_s(pipelined, [0, 14, 30]) / pipelined.scale_s, rel=1e-5
    )
    np.testing.assert_array_equal(trajectory.target.max(axis=1), 1.0)
