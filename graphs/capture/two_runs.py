"""Runs a step twice before it is traced, to find what its trace, which stands for all steps, would lose."""

from __future__ import annotations

from collections.abc import Sequence

from graphs.capture.known_values import BOTH, HIGH, LOW, MadeUpValues
from graphs.capture.loss import CaptureError
from graphs.capture.python_state import foreign_draws
from graphs.capture.step import Step
from graphs.capture.value_numbers import ValueNumbers
from graphs.system.errors import shortened

FOREIGN = (
    "forward reads values that torch does not make and that differ from run to run (a clock, a file, a "
    "random generator of its own); each step repeats those of the capture"
)


def find_losses(step: Step) -> list[str]:
    """Runs the forward pass on fake tensors, and again with the attributes that the first run left.

    If the second run computes something else, a trace loses what made the difference. The runs also settle
    how the step is traced: with `tensor.item()` as a tensor if it runs so, and with made-up numbers where it
    reads values on which nothing depends.

    Returns:
        A line for each thing that is lost.
    """
    runs, mode = _Runs(step), step.fake_mode
    first = runs.run(LOW)
    if first is None and step.n_items:
        step.items_are_tensors = False
        first = runs.run(LOW)
    lines = [
        f"forward draws random numbers from {name}; each step repeats those of the capture; let torch draw"
        for name in sorted(set(runs.drawn))
    ]
    is_settled = first is not None and (not runs.n_asked or runs.run(HIGH) == runs.run(BOTH) == first)
    if not is_settled or not isinstance(mode, MadeUpValues):
        return [*lines, *changed_lines(step)]
    changed, step.restores = step.changed, False
    second, step.restores = runs.run(LOW), True
    third = first if second == first else runs.run(LOW)
    mode.answers = LOW
    lost = changed_lines(step, changed) if second != third else []
    return [*lines, *lost, *([FOREIGN] if third != first else [])]


def changed_lines(step: Step, changed: Sequence[str] | None = None) -> list[str]:
    """Names the attributes that `forward` changed, in one line; none if it changed none."""
    names = step.changed if changed is None else changed
    if not names:
        return []
    return [
        f"forward changes {shortened(', '.join(names))}, on which later steps depend; each step begins with "
        "the values of the capture; a buffer that is changed in place is carried on"
    ]


class _Runs:
    """Runs a step forward on fake tensors.

    Attributes:
        drawn: names of the generators that drew numbers which torch does not draw.
        n_asked: number of values that the last run asked for.
    """

    def __init__(self, step: Step) -> None:
        self._step, self._numbers = step, ValueNumbers(state_varies=step.has_loss)
        self.drawn: list[str] = []
        self.n_asked = 0

    def run(self, answers: str) -> tuple[int, ...] | None:
        """Returns the numbers of what a run computes; None if it fails."""
        step, mode = self._step, self._step.fake_mode
        if not isinstance(mode, MadeUpValues):
            return None
        mode.answers, mode.n_asked = answers, 0
        try:
            with foreign_draws() as drawn, mode:
                return self._numbers.run(step.run, list(step.state.values()), step.tensors)
        except CaptureError:
            if not mode.n_asked:
                raise
            return None
        except Exception:
            return None
        finally:
            self.n_asked, mode.answers = mode.n_asked, None
            self.drawn += drawn
