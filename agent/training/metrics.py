"""The numbers that a training reports: their names, and what they mean.

The names are those of `metrics.jsonl` and of TensorBoard, which sorts them and shows the first two groups
open: step times come first, what the optimizer does last.
"""

from __future__ import annotations

USES = {
    "train": "episodes drawn by the policy on the graphs it trains on, in this update",
    "validation": "greedy placements of the averaged policy for validation graphs, which help to choose it",
    "held_out": "greedy placements of the averaged policy for held-out graphs, which decide nothing",
}
REFERENCES = {
    "single": "the fastest single device",
    "list": "the best list schedule",
    "annealing": "annealing with 10,000 evaluations",
}
STEP_TIME, BY_FAMILY, TRAINING, UPDATE = "step_time", "step_times_by_family", "training", "update"
"""Groups, as TensorBoard sorts them."""
SCORE = f"{STEP_TIME}/score"
ITERATION, PROGRESS = f"{TRAINING}/iteration", f"{TRAINING}/progress"
WALL_S, CPU_S = f"{TRAINING}/wall_s", f"{TRAINING}/cpu_s"
SPEED = f"{TRAINING}/decisions_per_s"

MEANINGS = {
    SCORE: "greedy step time over the fastest single device, on training and validation graphs; the policy "
    "with the least is kept",
    ITERATION: "updates made",
    PROGRESS: "share of the training that is done, of its decisions or of its time",
    WALL_S: "seconds trained",
    CPU_S: "processor seconds trained, of all threads of this process",
    SPEED: "decisions learned from in a second of this update",
    f"{TRAINING}/episodes": "episodes that ended in this update",
    f"{TRAINING}/infeasible": "share of them that ended out of memory",
    f"{TRAINING}/entropy": "mean entropy of the policy in nats",
    f"{TRAINING}/imitation_accuracy": "mean soft target of the policy's first choices; 1 = each as good as "
    "the best device",
    f"{UPDATE}/approx_kl": "divergence of the policy before and after the update",
    f"{UPDATE}/clip_fraction": "share of decisions whose ratio PPO clipped",
    f"{UPDATE}/entropy_weight": "weight of the entropy bonus",
    f"{UPDATE}/explained_variance": "share of the variance of returns that the value function explains",
    f"{UPDATE}/imitation_loss": "minus log probability of the soft targets",
    f"{UPDATE}/imitation_value_loss": "squared error of the values of imitated decisions",
    f"{UPDATE}/learning_rate": "of Adam",
    f"{UPDATE}/loss": "sum of PPO's losses",
    f"{UPDATE}/policy_loss": "PPO's clipped objective",
    f"{UPDATE}/value_loss": "squared error of the values",
}
"""What each metric means, but for step times by use and reference, which `meanings` adds."""


def step_time_name(use: str, reference: str, family: str = "") -> str:
    """Name of the step time of some graphs over a reference's, of all families or of one."""
    return f"{BY_FAMILY}/{use}_over_{reference}/{family}" if family else f"{STEP_TIME}/{use}_over_{reference}"


def meanings() -> dict[str, str]:
    """What each metric means, by name; names by family end in `FAMILY`."""
    ratios = {
        step_time_name(use, reference, family): f"{scope}step time over that of {against}: {what}"
        for family, scope in (("", "geometric mean of "), ("FAMILY", "the same of one family, "))
        for use, what in USES.items()
        for reference, against in REFERENCES.items()
        if (use, reference) != ("train", "annealing")
    }
    return ratios | MEANINGS


def as_markdown() -> str:
    """A table of `meanings`."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in meanings().items()]
    return "\n".join(["| metric | meaning |", "| --- | --- |", *rows])
