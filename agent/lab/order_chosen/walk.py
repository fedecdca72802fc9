"""Walks in which an action is a ready op and the device of its unit, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.policy.compiled.head import Contexts, HeadArrays, new_head_scratch, score
from agent.policy.compiled.policy import CompiledPolicy
from envs.placement.episodes import EpisodeBatch, EpisodeSettings
from envs.placement.observation.observe import observe
from envs.placement.packing import mdp_arrays_at, problem_at
from envs.placement.state import POSITION, begin_empty, episode_at
from envs.placement.transition import construct, share_of_overflow
from envs.problem import Problem
from envs.simulator.arrays import copy
from graphs.orders import ORDERS
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

K, WINDOW, WIDTH = 8, 512, 32
"""Candidates, remaining visits that are searched for them, and hidden units of the head of the order."""
N_OWN = 3
"""Inputs of the head besides those of the actor: rank, chance of the best device, number of candidates."""


class OrderHead(NamedTuple):
    """A head that scores a candidate, float32."""

    weight: NDArray[np.float32]  # (n_inputs, WIDTH)
    bias: NDArray[np.float32]  # (WIDTH,)
    out: NDArray[np.float32]  # (WIDTH,)
    per_rank: NDArray[np.float32]  # (1,) added for each place behind the first in program order


class Record(NamedTuple):
    """What walks saw and took, a row for each episode and decision; decisions beyond the last row wrap."""

    inputs: NDArray[np.float32]  # (n, n_decisions, K, n_inputs)
    n_candidates: IntArray  # (n, n_decisions)
    taken: IntArray  # (n, n_decisions)
    op: IntArray  # (n, n_decisions)
    device: IntArray  # (n, n_decisions)
    features: NDArray[np.float32]  # (n, n_decisions, n_devices, n_features) of the taken candidate
    mask: NDArray[np.bool_]  # (n, n_decisions, n_devices)


@kernel
def put_first(visits, position, at):
    """Takes a visit out of its place and puts it at a position before it."""
    op = visits[at]
    for k in range(at, position, -1):
        visits[k] = visits[k - 1]
    visits[position] = op


@kernel
def put_back(visits, position, at):
    """Undoes `put_first`."""
    op = visits[position]
    for k in range(position, at):
        visits[k] = visits[k + 1]
    visits[at] = op


@kernel
def find_candidates(p, m, episode, visited, most, found):
    """Finds the first ready visits whose unit is not decided; returns their number."""
    visits, position, n = episode.visits, episode.state[POSITION], 0
    for at in range(position, min(len(visits), position + WINDOW)):
        op = visits[at]
        ready = episode.device_of[op] < 0
        for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
            producer = p.producer[p.input_item[k]]
            ready = ready and (visited[producer] or not m.is_compute[producer])
        if ready or at == position:
            found[n] = at
            n += 1
            if n == most:
                break
    return n


@kernel
def pick(scores, n, draw):
    """Draws an index by its softmax; a negative draw takes the first of the greatest."""
    best = 0
    for k in range(1, n):
        if scores[k] > scores[best]:
            best = k
    if draw < 0.0:
        return best
    total = 0.0
    for k in range(n):
        total += np.exp(scores[k] - scores[best])
    left = draw * total
    for k in range(n):
        left -= np.exp(scores[k] - scores[best])
        if left < 0.0:
            return k
    return best


@kernel(entry=True)
def walk(
    packed, episodes, scratch, rules, first, draws, observation, result, head, own, buffers, record, most
):
    """Walks whole episodes; `result.outcome` is not zero where the placement is not within the memory.

    Args:
        packed, episodes, scratch, rules, first, observation, result: as of `step_episodes`.
        draws: of each decision for the op and the device, float64 (n, n_decisions, 2); negative = best.
        head, own: `HeadArrays`, `OrderHead`.
        buffers: scratch of the head; found (K,), scores (K,), logits (K, n_devices), log chances
            (n_devices,), hidden (WIDTH,), visited (n_ops,).
        record: `Record`.
        most: candidates, int; 1 takes the visits as they are.
    """
    head_scratch, found, scores, logits, masks, features, hidden, visited = buffers
    n_rows = record.op.shape[1]
    for row in range(len(draws)):
        e = first + row
        i = episodes.problem[e]
        p, m = problem_at(packed, i), mdp_arrays_at(packed, i)
        episode = episode_at(episodes, p, e)
        n_devices, step, done, before = len(p.memory), 0, False, 0
        visited[:] = False
        result.outcome[e] = 0
        while not done:
            position = episode.state[POSITION]
            for at in range(before, position):
                visited[episode.visits[at]] = True
            before = position
            n = find_candidates(p, m, episode, visited, most, found)
            t = step % n_rows
            offered = False
            for j in range(n):
                put_first(episode.visits, position, found[j])
                fits = observe(m, p, episode, scratch, rules, observation, i, e)
                scores[j] = -1e30
                for d in range(n_devices):
                    masks[j, d] = observation.mask[e, d]
                    copy(observation.devices[e, d], features[j, d])
                if fits:
                    offered = True
                    op = episode.visits[position]
                    score(head, head_scratch, e, i, op, observation.devices[e], observation.mask[e])
                    greatest, total = np.float32(-1e30), 0.0
                    for d in range(n_devices):
                        logits[j, d] = head_scratch.logits[e, d] if masks[j, d] else np.float32(-1e30)
                        greatest = max(greatest, logits[j, d])
                    for d in range(n_devices):
                        total += np.exp(logits[j, d] - greatest)
                    if most > 1:
                        x = record.inputs[e, t, j]
                        n_shared, n_pooled = head_scratch.shared.shape[1], head_scratch.pooled.shape[1]
                        copy(head_scratch.shared[e], x[:n_shared])
                        copy(head_scratch.pooled[e], x[n_shared : n_shared + n_pooled])
                        x[n_shared + n_pooled] = j / np.float32(K)
                        x[n_shared + n_pooled + 1] = 1.0 / total
                        x[n_shared + n_pooled + 2] = n / np.float32(K)
                        copy(own.bias, hidden)
                        for a in range(len(x)):
                            if x[a] != 0.0:
                                for b in range(len(hidden)):
                                    hidden[b] += x[a] * own.weight[a, b]
                        value = own.per_rank[0] * j
                        for b in range(len(hidden)):
                            value += hidden[b] / (1.0 + np.exp(-hidden[b])) * own.out[b]
                        scores[j] = value
                    else:
                        scores[j] = 0.0
                put_back(episode.visits, position, found[j])
            if not offered:
                result.outcome[e] = 2
                break
            draw = min(step, draws.shape[1] - 1)
            j = pick(scores, n, draws[row, draw, 0])
            put_first(episode.visits, position, found[j])
            device = pick(logits[j], n_devices, draws[row, draw, 1])
            record.n_candidates[e, t], record.taken[e, t] = n, j
            record.op[e, t], record.device[e, t] = episode.visits[position], device
            for d in range(n_devices):
                record.mask[e, t, d] = masks[j, d] > 0
                copy(features[j, d], record.features[e, t, d])
            done = construct(m, p, episode, device)
            step += 1
        episode.state[4] = step
        if done and share_of_overflow(p, episode, result.peak_bytes[e, :n_devices]) > 0.0:
            result.outcome[e] = 1


class Walker:
    """Walks over one problem, `n` at a time.

    Args:
        n_rows: decisions of a walk that are recorded.
    """

    def __init__(self, policy: CompiledPolicy, problem: Problem, n: int, *, n_rows: int = 1) -> None:
        self.problem, self.n, self.policy = problem, n, policy
        self.batch = EpisodeBatch([problem], n, EpisodeSettings())
        self.head: HeadArrays = policy.head_arrays([problem])
        self.contexts = Contexts(*self.head[:3])
        n_devices = problem.n_devices
        scratch = new_head_scratch(self.head, n, n_devices)
        n_features = self.batch.observation.devices.shape[2]
        n_inputs = scratch.shared.shape[1] + scratch.pooled.shape[1] + N_OWN
        self.buffers = (
            scratch,
            np.zeros(K, np.int64),
            np.zeros(K),
            np.zeros((K, n_devices), np.float32),
            np.zeros((K, n_devices), np.int8),
            np.zeros((K, n_devices, n_features), np.float32),
            np.zeros(WIDTH, np.float32),
            np.zeros(problem.graph.n_ops, np.bool_),
        )
        self.record = Record(
            np.zeros((n, n_rows, K, n_inputs), np.float32),
            *(np.zeros((n, n_rows), np.int64) for _ in range(4)),
            np.zeros((n, n_rows, n_devices, n_features), np.float32),
            np.zeros((n, n_rows, n_devices), np.bool_),
        )
        self.n_inputs = n_inputs

    def run(
        self,
        own: OrderHead,
        rng: np.random.Generator | None,
        *,
        most: int = K,
        visits: IntArray | None = None,
        incremental: bool = True,
        draws_devices: bool = True,
    ) -> FloatArray:
        """Walks in all episodes; without a generator greedily.

        Args:
            visits: ops in an order; by default `topo`.
            incremental: simulate as if the host issued ops in the order of the walk; else in full.

        Returns:
            Step times in seconds, (n,); infinite where the memory does not suffice.
        """
        visits = ORDERS["topo"](self.problem.graph, np.random.default_rng(0)) if visits is None else visits
        for e in range(self.n):
            begin_empty(self.batch._episodes, e, 0, visits, is_incremental=incremental)
        draws = np.full((self.n, len(visits), 2), -1.0)
        if rng is not None:
            draws[..., : 1 + draws_devices] = rng.random((*draws.shape[:2], 1 + draws_devices))
        batch = self.batch
        walk(
            *(batch._packed, batch._episodes, batch._scratches[0], batch._rules, 0, draws),
            *(batch.observation, batch._result, self.head, own, self.buffers, self.record, most),
        )
        return np.where(batch._result.outcome[: self.n] == 0, batch._episodes.time_s[:, 0], np.inf)

    def decisions(self) -> IntArray:
        """Returns the decisions of each episode, (n,)."""
        return self.batch._episodes.state[:, 4].copy()

    def visits(self) -> IntArray:
        """Returns the ops in the order that the first episode visited them."""
        return self.batch._episodes.visits[0].copy()


def new_order_head(n_inputs: int, seed: int, per_rank: float) -> OrderHead:
    """Makes a head of random weights that prefers the first ready by `per_rank` for each place."""
    rng = np.random.default_rng(seed)
    weight = rng.normal(0, n_inputs**-0.5, (n_inputs, WIDTH)).astype(np.float32)
    out = rng.normal(0, WIDTH**-0.5, WIDTH).astype(np.float32)
    return OrderHead(weight, np.zeros(WIDTH, np.float32), out, np.array([per_rank], np.float32))


def problems_of(graphs: Sequence[object], clusters: Sequence[object]) -> list[Problem]:
    """Pairs graphs and clusters."""
    return [Problem(graph, cluster) for graph in graphs for cluster in clusters]
