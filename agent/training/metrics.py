"""The numbers that a training reports: their names and meanings.

The names are those of `metrics.jsonl`. TensorBoard cuts tags of more than 20 characters, so `tags_of` gives
shorter ones there, but for families and those of stable-baselines3; held-out graphs come first.
"""

from __future__ import annotations

from collections.abc import Iterable

USES = {
    "train": "episodes drawn by the policy on the graphs it trains on, in this update",
    "validation": "greedy placements of the averaged policy for validation graphs, which help to choose it",
    "held_out": "greedy placements of the averaged policy for held-out graphs, which decide nothing",
    "trained_on": "greedy placements of the averaged policy for up to 16 of the graphs it trains on",
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
    SCORE: "greedy step time over the fastest single device, on training and validation graphs; the "
    "newest policy is kept unless it is surely worse than that with the least",
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


OVER_SEARCH, TRAINED_ON = "compare/to_annealing", "compare/trained_on"
"""Tags of the first two charts: step times over annealing's, of held-out graphs and of graphs trained on."""
PLACED = "eval/placed_before", "eval/placed_now"
"""Tags of the drawings of a graph's step, before the first update and at the last evaluation."""
TAGS = {
    step_time_name("held_out", "annealing"): OVER_SEARCH,
    step_time_name("trained_on", "annealing"): TRAINED_ON,
    step_time_name("held_out", "single"): "to_device/held_out",
    SCORE: "to_device/score",
    f"{TRAINING}/imitation_accuracy": f"{TRAINING}/accuracy",
    f"{UPDATE}/imitation_value_loss": f"{UPDATE}/imit_value",
}
"""Tags of TensorBoard that are not the metric's name."""
COUNTERS = (ITERATION, PROGRESS, WALL_S, CPU_S, f"{TRAINING}/episodes")
"""Metrics that are in `metrics.jsonl` alone, as are step times that `TAGS` does not name."""
CHARTS = {
    "step time / annealing's: held out, trained on": [OVER_SEARCH, TRAINED_ON],
    "phase: 1 imitation, 2 on-policy, 3 reinforcement": [PHASE],
    "entropy_loss: minus the entropy, nats": [f"{UPDATE}/entropy_loss"],
    "approx_kl: change of the policy by an update": [f"{UPDATE}/approx_kl"],
    "explained_variance, clip_fraction": [f"{UPDATE}/explained_variance", f"{UPDATE}/clip_fraction"],
    "fps: decisions learned from in a second": [SPEED],
    "ep_rew_mean: minus steps of one device": [REWARD],
    "accuracy of imitation": [f"{TRAINING}/accuracy"],
}
"""Charts of the overview, by title: the tags of each."""


def overview(*, imitates: bool) -> dict[str, dict[str, list[str | list[str]]]]:
    """Returns a layout of TensorBoard's custom scalars; charts of imitation are left out if it does not."""
    chosen = {title: tags for title, tags in CHARTS.items() if imitates or TRAINING not in tags[0]}
    return {TRAINING: {title: ["Multiline", tags] for title, tags in chosen.items()}}


def tags_of(names: Iterable[str]) -> dict[str, str]:
    """Returns the tags that TensorBoard shows of some metrics, by name.

    Of step times by family those of held-out graphs over annealing are shown, where there are several.
    """
    tags = {name: TAGS.get(name, name) for name in names if name not in COUNTERS}
    prefix = step_time_name("held_out", "annealing", "*").removesuffix("*")
    families = [name for name in tags if name.startswith(prefix)]
    tags |= {name: f"of_family/{name.removeprefix(prefix)}" for name in families if len(families) > 1}
    return {name: tag for name, tag in tags.items() if not tag.startswith((STEP_TIME, BY_FAMILY))}


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
    tags = tags_of([*meanings(), step_time_name("held_out", "annealing", "of several")])
    rows = [f"| {tags.get(name, '')} | `{name}` | {meaning} |" for name, meaning in meanings().items()]
    return "\n".join(["| tag | in metrics.jsonl | meaning |", "| --- | --- | --- |", *rows])
