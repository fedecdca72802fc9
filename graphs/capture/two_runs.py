"""Runs a step twice before it is traced, to find what its trace, which stands for all steps, would lose."""

from __future__ import annotations

from collections.abc import Sequence

from graphs.capture.known_values import BOTH, HIGH, LOW, copied_values
from graphs.capture.loss import CaptureError
from graphs.capture.step import Step
from graphs.capture.value_numbers import ValueNumbers
from graphs.system.errors import shortened

FOREIGN = (
    "forward reads values that torch does not make and that differ from run to run (a clock, a file, a "
    "random generator of its own); each step repeats those of the capture"
)


def find_losses(step: Step) -> tuple[list[str], bool]:
    """Runs the forward pass on fake tensors, and again with the attributes that the first run left.

    If the second run computes something else, a trace loses what made the difference. The runs also settle
    how the step is traced: with `tensor.item()` as a tensor if it runs so, and with made-up numbers where it
    reads values on which nothing depends.

    Returns:
        A line for each thing that is lost, and whether that is all; it may not be if the step needs values.
    """
    runs = _Runs(step)
    first = runs.run(LOW)
    if first is None and step.n_items:
        step.items_are_tensors = False
        first = runs.run(LOW)
    if step.assigned:  # which is copied from now on
        first = runs.run(LOW)
    lines = [
        f"forward draws random numbers from {name}; each step repeats those of the capture; let torch draw"
        for name in step.drawn
    ]
    asks = runs.n_asked > 0 and not step.known_values
    is_settled = first is not None and (not asks or runs.run(HIGH) == runs.run(BOTH) == first)
    if not is_settled:
        return lines, False
    changed, step.restores = step.changed, False
    second, step.restores = runs.run(LOW), True
    third = first if second == first else runs.run(LOW)
    step.made_up.which = LOW if asks else None
    lost = changed_lines(changed) if second != third else []
    return [*lines, *lost, *([FOREIGN] if third != first else [])], True


def changed_lines(names: Sequence[str]) -> list[str]:
    """Says of the attributes that `forward` changed that they are not carried on."""
    if not names:
        return []
    return [
        f"forward changes {shortened(', '.join(names))}, but each step begins as the capture did; to carry a "
        "value on, keep it in a buffer that is changed in place"
    ]


class _Runs:
    """Runs a step forward on fake tensors.

    Attributes:
        n_asked: number of values that the last run asked for.
    """

    def __init__(self, step: Step) -> None:
        self._step, self._numbers = step, ValueNumbers(state_varies=step.has_loss)
        self.n_asked = 0

    def run(self, answers: str) -> tuple[int, ...] | None:
        """Returns the numbers of what a run computes; None if it fails."""
        step, made_up = self._step, self._step.made_up
        made_up.which, made_up.n_asked = answers, 0
        try:
            state = list(step.state.values())
            with copied_values([*state, *step.tensors]), step.fake_mode:
                return self._numbers.run(step.run, state, step.tensors)
        except CaptureError:
            if not made_up.n_asked:
                raise
            return None
        except Exception:
            return None
        finally:
            self.n_asked, made_up.which = made_up.n_asked, None
