"""The numbers that a training reports: their names and meanings.

The names are those of `metrics.jsonl`. TensorBoard cuts tags of more than 20 characters, so `tag_of` gives
shorter ones there, but for those of stable-baselines3; it sorts them, so that held-out graphs come first.
"""

from __future__ import annotations

import hashlib

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
STEP_TIME, BY_FAMILY, TRAINING, UPDATE = "step_time", "step_times_by_family", "training", "train"
PHASE = f"{TRAINING}/phase"
PHASES = ("imitation", "on-policy imitation", "reinforcement")
"""Phases that learn; `PHASE` counts them from 1."""
SCORE = f"{STEP_TIME}/score"
ITERATION, PROGRESS = f"{TRAINING}/iteration", f"{TRAINING}/progress"
WALL_S, CPU_S = f"{TRAINING}/wall_s", f"{TRAINING}/cpu_s"
SPEED = "time/fps"
REWARD, LENGTH, EVALUATED_REWARD = "rollout/ep_rew_mean", "rollout/ep_len_mean", "eval/mean_reward"
FROM_SB3 = tuple(
    f"{UPDATE}/{name}"
    for name in (
        "policy_gradient_loss",
        "value_loss",
        "loss",
        "entropy_loss",
        "explained_variance",
        "approx_kl",
        "clip_fraction",
    )
)
"""Numbers that stable-baselines3 records of an update, by its own names."""

MEANINGS = {
    SCORE: "greedy step time over the fastest single device, on training and validation graphs; the policy "
    "with the least is kept",
    ITERATION: "updates made",
    PHASE: f"phase of this update: {', '.join(f'{at} {name}' for at, name in enumerate(PHASES, 1))}",
    PROGRESS: "share of the training that is done, of its decisions or of its time",
    WALL_S: "seconds trained",
    CPU_S: "processor seconds trained, of all threads of this process",
    SPEED: "decisions learned from in a second of this update",
    REWARD: "mean return of the episodes that ended in this update: minus step times of one device",
    LENGTH: "mean number of their decisions",
    EVALUATED_REWARD: "minus the mean greedy step time of validation graphs over the fastest single device",
    f"{TRAINING}/episodes": "episodes that ended in this update",
    f"{TRAINING}/infeasible": "share of them that ended out of memory",
    f"{TRAINING}/imitation_accuracy": "mean soft target of the policy's first choices; 1 = each as good as "
    "the best device",
    f"{UPDATE}/approx_kl": "divergence of the policy before and after the update",
    f"{UPDATE}/clip_fraction": "share of decisions whose ratio PPO clipped",
    f"{UPDATE}/entropy_coef": "weight of the entropy bonus",
    f"{UPDATE}/entropy_loss": "minus the mean entropy of the policy in nats",
    f"{UPDATE}/explained_variance": "share of the variance of returns that the value function explains",
    f"{UPDATE}/imitation_loss": "minus log probability of the soft targets",
    f"{UPDATE}/imitation_value_loss": "smooth L1 loss of the values of imitated decisions",
    f"{UPDATE}/learning_rate": "of Adam",
    f"{UPDATE}/loss": "sum of PPO's losses",
    f"{UPDATE}/policy_gradient_loss": "PPO's clipped objective",
    f"{UPDATE}/value_loss": "squared error of the values",
}
"""The meaning of each metric, but for step times by use and reference, which `meanings` adds."""


def step_time_name(use: str, reference: str, family: str = "") -> str:
    """Name of the step time of some graphs over a reference's, of all families or of one."""
    return f"{BY_FAMILY}/{use}_over_{reference}/{family}" if family else f"{STEP_TIME}/{use}_over_{reference}"


LONGEST_FAMILY = 10
GROUP_OF_USE = {"validation": "seen/valid_", "train": "seen/train_"}
OVER_SEARCH = "compare/to_annealing"
"""Tag of the first chart."""
TAGS = {
    step_time_name(use, reference): f"{group}{reference}"
    for use, group in GROUP_OF_USE.items()
    for reference in REFERENCES
} | {
    step_time_name("held_out", "annealing"): OVER_SEARCH,
    step_time_name("held_out", "list"): "compare/to_list",
    step_time_name("held_out", "single"): "compare/to_device",
    SCORE: "seen/score",
    f"{TRAINING}/imitation_accuracy": f"{TRAINING}/accuracy",
    f"{UPDATE}/imitation_loss": f"{UPDATE}/imit_loss",
    f"{UPDATE}/imitation_value_loss": f"{UPDATE}/imit_value",
}
"""Tags of TensorBoard that are not the metric's name."""


def tag_of(name: str) -> str:
    """Tag of a metric in TensorBoard; empty where it is in `metrics.jsonl` alone.

    Of step times by family those of held-out graphs over annealing are shown.
    """
    if not name.startswith(f"{BY_FAMILY}/"):
        return TAGS.get(name, name)
    kind, family = name.removeprefix(f"{BY_FAMILY}/").split("/", 1)
    if kind != "held_out_over_annealing":
        return ""
    if len(family) > LONGEST_FAMILY:
        family = family[: LONGEST_FAMILY - 5] + "~" + hashlib.sha256(family.encode()).hexdigest()[:4]
    return f"of_family/{family}"


def meanings() -> dict[str, str]:
    """Returns the meaning of each metric, by name; names by family end in `FAMILY`."""
    ratios = {
        step_time_name(use, reference, family): f"{scope}step time over that of {against}: {what}"
        for family, scope in (("", "geometric mean of "), ("FAMILY", "the same of one family, "))
        for use, what in USES.items()
        for reference, against in REFERENCES.items()
        if (use, reference) != ("train", "annealing")
    }
    return ratios | MEANINGS


def as_markdown() -> str:
    """A table of tags, metrics and `meanings`."""
    rows = [f"| {tag_of(name)} | `{name}` | {meaning} |" for name, meaning in meanings().items()]
    return "\n".join(["| tag | in metrics.jsonl | meaning |", "| --- | --- | --- |", *rows])
