"""Fine-tunes the shipped policy on windows of 64 visits, and compares its windows with the rule's.

`python -m agent.lab.repair 30` trains for 30 processor minutes. An episode begins where a window does, with
what a placement has before it, and ends with the window; what the placement has after it stays. The return
is the share of the step that this saves, compared among eight episodes of a window.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from agent.instances.best_known import DATA
from agent.learn.rollout import Decisions, critic_arrays, roll_out
from agent.placers.base import Budget, SearchState
from agent.placers.search.annealing import run_chain
from agent.placers.search.rollout import RolloutRule
from agent.placers.search.walks import TAKE_BEST, Decider
from agent.placers.search.windows import STRIDE, WINDOW
from agent.policy.compiled.head import Contexts
from agent.policy.compiled.policy import CompiledPolicy
from agent.policy.compiled.walk import PolicyDecider, new_walk_state
from agent.policy.decoding import decode
from agent.policy.serialization import load_policy
from envs.cluster.presets import get_cluster
from envs.objective import OVER_BYTES, TOTAL_S, Objective
from envs.placement.episodes import EpisodeBatch
from envs.problem import Problem
from graphs.io.graph_files import read_graphs
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.running_time import running_cpu_s

EPISODES, IN_A_ROW, EVERY_S = 8, 4, 300.0
HELD_OUT = (
    *("large-nmt-2000", "large-nmt-2001", "large-ptb-2000", "large-gpt-2000", "large-gpt-4000"),
    *("large-llama-2000", "large-llama-2005", "large-moe-2000", "large-moe-2002", "large-t5-4000"),
    "large-ssm-4000",
)
Placed = tuple[IntArray, float]
Row = tuple[np.ndarray, ...]

policy = load_policy("pretrained")
rng = np.random.default_rng(0)
torch.manual_seed(0)
torch.set_num_threads(1)
LARGE = [g for g in read_graphs(Path("agent/lab/pretraining_large.jsonl.gz")) if g.n_ops < 6_000]
TRAINED = [
    Problem(graph, get_cluster(cluster))
    for graph in LARGE
    for cluster in ("4xv100", "2x4xa100", "4xa100-pcie", "8xa100")
]
PLACED = [
    Problem(g, get_cluster("4xv100")) for g in read_graphs(DATA / "sealed.jsonl.gz") if g.name in HELD_OUT
]
N_DEVICES = max(problem.n_devices for problem in TRAINED)


def decoded(problem: Problem) -> tuple[IntArray, FloatArray]:
    """Decodes a placement, and scores it."""
    device_of = decode(policy, problem)[0]
    return device_of, Objective(problem).scores(device_of[None])[0]


def swept(problem: Problem, decider: Decider, batch: EpisodeBatch, placed: Placed) -> Placed:
    """Decides all windows of a placement again, once; the first episode of three follows the placement."""
    (device_of, step_s), draws_rng, visit = placed, np.random.default_rng(1), 0
    batch.begin(0, 0, 0, draws_rng)
    while visit < batch.n_visits(0):
        for episode in (1, 2):
            batch.fork(0, episode)
        draws = np.full((3, 1, WINDOW), TAKE_BEST)
        draws[2] = draws_rng.random((1, WINDOW))
        decider.decide(np.array([0, WINDOW, WINDOW]), draws)
        candidates = np.stack([batch.device_of(episode) for episode in (1, 2)])
        candidates = np.where(candidates < 0, device_of, candidates)
        for candidate, score in zip(candidates, Objective(problem).scores(candidates), strict=True):
            if score[OVER_BYTES] == 0 and score[TOTAL_S] < step_s:
                device_of, step_s = candidate, float(score[TOTAL_S])
        visit = batch.follow(0, device_of, visit + STRIDE)
    return device_of, step_s


def gains(
    make: Callable[[EpisodeBatch, Problem], Decider], starts: list[tuple[IntArray, FloatArray]]
) -> FloatArray:
    """Steps after a sweep over the steps before it, of the graphs held out."""
    ratios = []
    for problem, (device_of, score) in zip(PLACED, starts, strict=True):
        batch = EpisodeBatch([problem], 3)
        end = swept(problem, make(batch, problem), batch, (device_of, float(score[TOTAL_S])))
        ratios.append(end[1] / score[TOTAL_S])
    return np.array(ratios)


def ages(problem: Problem) -> list[Placed]:
    """A decode, and what 1,000 and 10,000 moves more make of it; none where it is out of memory."""
    device_of, score = decoded(problem)
    if score[OVER_BYTES] > 0:
        return []
    pool = [(device_of, float(score[TOTAL_S]))]
    for moves in (1_000, 10_000):
        search = SearchState(problem, Budget(moves))
        search.keep(*pool[-1], 0.0)
        run_chain(search, rng, 0.0, 0.0)
        assert search.best is not None
        pool.append((search.best, search.best_score[TOTAL_S]))
    return pool


def collected(index: int, batch: EpisodeBatch, pool: list[Placed], compiled: CompiledPolicy) -> list[Row]:
    """Decides a few windows of a placement in episodes that draw; their decisions and advantages."""
    which, rows = int(rng.integers(len(pool))), list[Row]()
    device_of, step_s = pool[which]
    batch.begin(0, 0, 0, rng)
    n_visits = batch.n_visits(0)
    visit = batch.follow(0, device_of, int(rng.integers(max(n_visits - WINDOW, 1))))
    table, row_of, first_op = policy.embeddings.arrays(np.array([index]))
    head = compiled.head_over(Contexts(table, row_of[int(first_op[index]) :], np.zeros(1, dtype=np.int64)))
    shape = WINDOW, EPISODES + 1
    for _ in range(IN_A_ROW):
        if visit >= n_visits - WINDOW // 8:
            break
        for episode in range(1, EPISODES + 1):
            batch.fork(0, episode)
        seen = batch.observation
        numbers = [np.zeros(shape, dtype=np.int64) for _ in range(3)]
        reals = [np.zeros(shape, dtype=np.float32) for _ in range(4)]
        devices = np.zeros((*shape, *seen.devices.shape[1:]), dtype=np.float32)
        mask = np.zeros((*shape, seen.mask.shape[1]), dtype=np.int8)
        decisions = Decisions(*numbers[:2], devices, mask, numbers[2], *reals)
        n_taken = np.zeros(EPISODES + 1, dtype=np.int64)
        n_taken[0] = WINDOW
        draws = np.ascontiguousarray(rng.random(shape[::-1]))
        critic, state = critic_arrays(compiled.weights), new_walk_state(head, batch)
        batch.loop(roll_out, draws, head, critic, state, n_taken, decisions)
        ends = np.stack([batch.device_of(episode) for episode in range(1, EPISODES + 1)])
        ends = np.where(ends < 0, device_of, ends)
        scores = Objective(batch.problems[0]).scores(ends)
        steps_s = np.where(scores[:, OVER_BYTES] > 0, np.inf, scores[:, TOTAL_S])
        saved = (step_s - np.minimum(steps_s, 1.05 * step_s)) / step_s
        if saved.std() > 1e-7:
            advantages = (saved - saved.mean()) / (saved.std() + 1e-5)
            for e, advantage in enumerate(advantages, start=1):
                n = int(n_taken[e])
                columns = decisions.op, devices, mask, decisions.action, decisions.log_prob
                problem = np.full(n, index)
                rows.append((problem, *(c[:n, e] for c in columns), np.full(n, advantage, dtype=np.float32)))
        best = int(np.argmin(steps_s))
        if steps_s[best] < step_s:
            device_of, step_s = ends[best], float(steps_s[best])
            if rng.random() < 0.2:
                pool[which] = device_of, step_s
        visit = batch.follow(0, device_of, visit + STRIDE)
    return rows


def updated(rows: list[Row], optimizer: torch.optim.Optimizer) -> None:
    """Makes two passes of clipped policy gradients, as PPO does, over some decisions."""

    def padded(column: np.ndarray) -> np.ndarray:
        full = np.zeros((len(column), N_DEVICES, *column.shape[2:]), dtype=column.dtype)
        full[:, : column.shape[1]] = column
        return full

    columns = [[row[i] if i not in (2, 3) else padded(row[i]) for row in rows] for i in range(7)]
    problem, op, devices, mask, action, before, advantage = (
        torch.from_numpy(np.concatenate(c)) for c in columns
    )
    obs = {"problem": problem[:, None], "op": op[:, None], "devices": devices.flatten(1), "mask": mask}
    for _ in range(2):
        for chosen in torch.randperm(len(action)).split(4_096):
            logits, _ = policy.scores_of_encoded({name: column[chosen] for name, column in obs.items()})
            log_probs = logits.log_softmax(1)
            taken = log_probs.gather(1, action[chosen][:, None]).squeeze(1)
            ratio, scale = (taken - before[chosen]).exp(), advantage[chosen]
            entropy = -(log_probs.exp() * log_probs).sum(1).mean()
            loss = -torch.min(ratio * scale, ratio.clamp(0.8, 1.2) * scale).mean() - 1e-4 * entropy
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()


def main(minutes: float) -> None:
    """Trains, and prints geometric means over the graphs held out every five minutes."""
    starts = [decoded(problem) for problem in PLACED]
    rule = gains(lambda batch, problem: RolloutRule(batch), starts)
    print("rule", np.exp(np.log(rule).mean()).round(4), flush=True)

    def report() -> None:
        compiled = policy.compiled()
        mine = gains(lambda batch, problem: PolicyDecider(compiled.head_arrays([problem]), batch), starts)
        means = np.exp(np.log(mine).mean()), np.exp(np.log(mine / rule).mean())
        print("policy", means[0].round(4), "over rule", means[1].round(4), flush=True)

    report()
    policy.set_problems(TRAINED)
    pools = {index: pool for index, problem in enumerate(TRAINED) if (pool := ages(problem))}
    batches = {index: EpisodeBatch([TRAINED[index]], EPISODES + 1) for index in pools}
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)
    trained_s, reported_s, most_s = 0.0, 0.0, 60 * minutes
    while trained_s < most_s:
        began_s, compiled = running_cpu_s(), policy.compiled()
        chosen = rng.choice(list(pools), 12, replace=False).tolist()
        updated([row for i in chosen for row in collected(i, batches[i], pools[i], compiled)], optimizer)
        trained_s += running_cpu_s() - began_s
        optimizer.param_groups[0]["lr"] = 3e-4 * max(1 - trained_s / most_s, 0.02)
        if trained_s - reported_s > EVERY_S:
            reported_s = trained_s
            report()
    report()


if __name__ == "__main__":
    main(float(sys.argv[1]))
