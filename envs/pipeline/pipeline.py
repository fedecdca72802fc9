"""The kind of a pipelined step: the schedule of its stages, and the number of microbatches."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphs.system.errors import InputError, shortened

GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = SCHEDULES = (
    "gpipe",
    "1f1b",
    "interleaved-1f1b",
    "zero-bubble",
)
"""Schedules, as `torch.distributed.pipelining` calls them."""
AUTO, CHOSEN_FROM = "auto", (GPIPE, ONE_F_ONE_B, f"{INTERLEAVED}:2", ZERO_BUBBLE)
"""In place of a schedule: the one of these with the shortest simulated step is chosen."""

MAX_MICROBATCHES = 65_536
"""Microbatches of one step, at most; more would need more memory than a simulation should take."""


class PipelineError(InputError):
    """A pipeline that does not exist or that a placement cannot run; the message says what would be right."""


@dataclass(frozen=True)
class Pipeline:
    """A schedule and a number of microbatches; the graph is the step of one microbatch.

    Attributes:
        schedule: one of `SCHEDULES`; `interleaved-1f1b:V` has V stages on each device, by default 2. `auto`
            leaves the choice to `place` or `evaluate.py`.
        microbatches: number in one step, at least 1.
        may_recompute: placers may run the forward ops of a stage again, which needs less memory.
        replicas: groups of devices that each run the whole pipeline on a share of the microbatches; `auto`
            leaves their number to `place` or `evaluate.py`.
        shard_optimizer: the replicas divide the optimizer's states and updates among them (ZeRO-1).

    Raises:
        PipelineError: on construction, an unknown schedule or a number out of range.
    """

    schedule: str = ONE_F_ONE_B
    microbatches: int = 8
    may_recompute: bool = field(default=True, kw_only=True)
    replicas: int | str = field(default=1, kw_only=True)
    shard_optimizer: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        name, _, count = self.schedule.partition(":")
        choices = f"use {GPIPE}, {ONE_F_ONE_B}, {INTERLEAVED}:V, {ZERO_BUBBLE} or {AUTO}"
        if name not in (*SCHEDULES, AUTO) or (count and name != INTERLEAVED):
            raise PipelineError(f"unknown schedule '{shortened(self.schedule)}'; {choices}")
        if count and count not in map(str, range(1, 1001)):
            raise PipelineError(
                f"schedule '{name}': '{shortened(count)}' is no number of stages; {choices}, V from 1 to 1000"
            )
        if not 1 <= self.microbatches <= MAX_MICROBATCHES:
            raise PipelineError(
                f"{self.microbatches} microbatches; a step has at least 1 and at most {MAX_MICROBATCHES}"
            )
        is_number = isinstance(self.replicas, int) and 1 <= self.replicas <= self.microbatches
        if self.replicas != AUTO and not is_number:
            raise PipelineError(
                f"{shortened(str(self.replicas))} replicas of {self.microbatches} microbatches; use {AUTO}, "
                "or a number from 1 to that of the microbatches"
            )

    @property
    def name(self) -> str:
        """The schedule without its number of stages, one of `SCHEDULES`."""
        return self.schedule.partition(":")[0]

    @property
    def noun(self) -> str:
        """Names it in sentences."""
        return "pipeline" if self.replicas == 1 else f"{self.replicas} replicas of the pipeline"

    @property
    def stages_per_device(self) -> int:
        """Stages on each device."""
        count = self.schedule.partition(":")[2]
        return int(count or 2) if self.name == INTERLEAVED else 1

    @property
    def splits_backward(self) -> bool:
        """Says whether gradients of weights have actions of their own."""
        return self.name == ZERO_BUBBLE
