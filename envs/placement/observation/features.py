"""The features of a candidate device: name, group and unit.

A feature is declared here and nowhere else: kernels fill the column of its name, feature sets choose groups,
and policy files carry the names.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

HORIZONS = ("near", "path", "far")
"""The horizons at which truncated rollouts are recorded; `path` is that of the ops that others wait for."""

STATE, LOOKAHEAD, CONSUMERS, ROLLOUT = GROUPS = ("state", "lookahead", "consumers", "rollout")
"""The sources of a feature: the state alone; a simulation with the op on the device, and where its neighbours
are; what its consumers read besides; a truncated rollout of a simple rule from there."""

MEAN_OPS, SHARE, FLAG, SINGLE_STEPS = "log mean op times", "share", "0 or 1", "single-device step times"
"""Units. Times are in mean op times and squashed to sign(x) log(1 + |x|) unless they say otherwise."""


@dataclass(frozen=True)
class Feature:
    """One number about one candidate device.

    Attributes:
        group: one of `GROUPS`.
        unit: name of the unit of the number.
    """

    name: str
    group: str
    unit: str


DEVICE_FEATURES: tuple[Feature, ...] = (
    Feature("step_time_over_least", LOOKAHEAD, MEAN_OPS),
    Feature("step_time_growth", LOOKAHEAD, MEAN_OPS),
    Feature("start_over_earliest", LOOKAHEAD, MEAN_OPS),
    Feature("finish_over_earliest", LOOKAHEAD, MEAN_OPS),
    Feature("device_free_over_earliest", LOOKAHEAD, MEAN_OPS),
    Feature("inputs_ready_over_earliest", LOOKAHEAD, MEAN_OPS),
    Feature("link_busy_beyond_start", LOOKAHEAD, MEAN_OPS),
    Feature("input_bytes_there", LOOKAHEAD, SHARE),
    Feature("output_bytes_there", LOOKAHEAD, SHARE),
    Feature("load_over_mean", STATE, SHARE),
    Feature("drained_over_earliest", STATE, MEAN_OPS),
    Feature("free_memory", STATE, SHARE),
    Feature("op_time_over_least", STATE, MEAN_OPS),
    Feature("op_time", STATE, MEAN_OPS),
    Feature("is_current_device", STATE, FLAG),
    Feature("is_last_device", STATE, FLAG),
    Feature("input_transfer_time", LOOKAHEAD, MEAN_OPS),
    Feature("idle_time", LOOKAHEAD, MEAN_OPS),
    Feature("step_time_beyond_finish", LOOKAHEAD, MEAN_OPS),
    Feature("slowness", STATE, "log single-device step time over the least"),
    Feature("step_time", LOOKAHEAD, SINGLE_STEPS),
    Feature("visits_done", STATE, SHARE),
    Feature("output_transfer_time", CONSUMERS, MEAN_OPS),
    Feature("consumer_input_bytes_there", CONSUMERS, SHARE),
    Feature("consumer_transfer_time_over_least", CONSUMERS, MEAN_OPS),
    Feature("consumer_finish_over_earliest", CONSUMERS, MEAN_OPS),
    *(
        Feature(f"rollout_{what}_{horizon}_over_least", ROLLOUT, MEAN_OPS)
        for horizon in HORIZONS
        for what in ("step_time", "mean_finish", "drained")
    ),
)
"""Columns of the observation, which has a row for each candidate device."""
N_DEVICE_FEATURES = len(DEVICE_FEATURES)
COLUMN: Any = namedtuple("Column", [feature.name for feature in DEVICE_FEATURES])(*range(N_DEVICE_FEATURES))
"""Position of each feature in `DEVICE_FEATURES`."""
FEATURE_BOUND = 1000.0
"""Bound of every device feature: times are squashed by a logarithm or cut off here, the rest are shares and
flags."""

FEATURE_SETS: dict[str, tuple[str, ...]] = {
    "rollout": GROUPS,
    "consumers": (STATE, LOOKAHEAD, CONSUMERS),
    "lookahead": (STATE, LOOKAHEAD),
    "state": (STATE,),
}
"""The groups of features in each feature set."""


def columns_of(feature_set: str) -> tuple[int, ...]:
    """Returns the positions in `DEVICE_FEATURES` that a feature set selects, ascending.

    Raises:
        KeyError: an unknown feature set.
    """
    groups = FEATURE_SETS[feature_set]
    return tuple(column for column, feature in enumerate(DEVICE_FEATURES) if feature.group in groups)
