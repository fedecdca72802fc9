"""The numbers that a training logs: their names, which are tags of TensorBoard too, and their meanings.

TensorBoard cuts tags of more than 20 characters, so names are no longer, but for families and those of
stable-baselines3; held-out graphs come first.
"""

from __future__ import annotations

OVER_SEARCH, TRAINED_ON = "compare/to_annealing", "compare/trained_on"
"""Step times over annealing's, of held-out graphs and of graphs trained on."""
EVALUATED_REWARD, PLACED = "eval/mean_reward", ("eval/placed_before", "eval/placed_now")
BY_FAMILY = "of_family/"
REWARD, INFEASIBLE = "rollout/ep_rew_mean", "rollout/infeasible"
SPEED, UPDATES, PROGRESS = "time/fps", "time/updates", "time/progress"
WALL_S, CPU_S = "time/wall_s", "time/cpu_s"
HELD_OUT, SCORE, VALIDATION = "to_device/held_out", "to_device/score", "to_device/validation"
ENTROPY_WEIGHT = "train/entropy_coef"
HPARAM_METRICS = {OVER_SEARCH: 0.0, SCORE: 0.0, HELD_OUT: 0.0}
"""Metrics that TensorBoard's table of hyperparameters shows; the values are replaced by the last ones."""

MEANINGS = {
    OVER_SEARCH: "greedy step time over that of annealing with 10,000 evaluations, on graphs that decide "
    "nothing; below 1 the policy is ahead",
    TRAINED_ON: "the same on up to 16 graphs that it trains on",
    EVALUATED_REWARD: "minus the mean greedy step time over the fastest single device, on graphs that "
    "decide nothing",
    f"{BY_FAMILY}FAMILY": f"`{OVER_SEARCH}` of one family, where there are several",
    REWARD: "mean return of the last 100 episodes: minus step times of one device",
    "rollout/ep_len_mean": "mean number of their decisions",
    INFEASIBLE: "share of them that ended out of memory",
    SPEED: "decisions learned from in a second",
    "time/iterations": "updates made since the training was started or resumed",
    "time/time_elapsed": "seconds since then",
    "time/total_timesteps": "decisions made",
    UPDATES: "updates made",
    PROGRESS: "share of the training that is done, of its decisions or of its time",
    WALL_S: "seconds trained, without compiling",
    CPU_S: "processor seconds trained, of all threads of this process",
    HELD_OUT: "greedy step time over the fastest single device, on graphs that decide nothing",
    SCORE: "the same on graphs for training and validation; the newest policy is kept unless it is surely "
    "worse than that with the least",
    VALIDATION: "the same on graphs for validation, which help to choose the policy",
    "train/approx_kl": "divergence of the policy before and after the update",
    "train/clip_fraction": "share of decisions whose ratio PPO clipped",
    "train/clip_range": "clip range of the ratio",
    ENTROPY_WEIGHT: "weight of the entropy bonus",
    "train/entropy_loss": "minus the mean entropy of the policy in nats",
    "train/explained_variance": "share of the variance of returns that the value function explains",
    "train/learning_rate": "learning rate of Adam",
    "train/loss": "sum of PPO's losses",
    "train/n_updates": "passes over decisions made",
    "train/policy_gradient_loss": "PPO's clipped objective",
    "train/value_loss": "squared error of the values",
}
"""The meaning of each metric; step times are geometric means."""

CHARTS = {
    "step time / annealing's: held out, trained on": [OVER_SEARCH, TRAINED_ON],
    "entropy_loss: minus the entropy, nats": ["train/entropy_loss"],
    "approx_kl: change of the policy by an update": ["train/approx_kl"],
    "explained_variance, clip_fraction": ["train/explained_variance", "train/clip_fraction"],
    "fps: decisions learned from in a second": [SPEED],
    "ep_rew_mean: minus steps of one device": [REWARD],
}
LAYOUT = {"training": {title: ["Multiline", tags] for title, tags in CHARTS.items()}}
"""The overview in TensorBoard's custom scalars."""


def as_markdown() -> str:
    """Makes a table of `MEANINGS`."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in MEANINGS.items()]
    return "\n".join(["| metric | meaning |", "| --- | --- |", *rows])
