"""Steps and their ops are timed on devices that run them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from envs.runtime.backends.device_process import DeviceTask
from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.backends.wire import StepRecord
from envs.runtime.device_program import Call
from envs.runtime.step_meter import StepMeter
from graphs.capture.capture import capture_step
from tests.envs.runtime.small_models import make


class CountingProcesses(DeviceProcesses):
    """Keeps the last tasks of the devices, and says that each instruction took a second."""

    tasks: Sequence[DeviceTask] = ()

    def ask(self, commands: Sequence[tuple[str, *tuple[Any, ...]]]) -> list[Any]:
        if commands[0][0] == "load":
            self.tasks = [task for _, task in commands]
        answers = super().ask(commands)
        if commands[0][0] != "steps":
            return answers
        return [[self._counted(record) for record in records] for records in answers]

    def _counted(self, record: StepRecord) -> StepRecord:
        spans = tuple((float(at), at + 1.0) for at in range(len(record.spans)))
        return StepRecord(record.outputs, 0.0, float(len(spans)), spans)


@pytest.fixture(scope="module")
def meter() -> Iterator[StepMeter]:
    module, inputs = make("gpt")
    captured = capture_step(module, inputs, optimizer="sgd")
    with CountingProcesses(2, timeout_s=60) as processes:
        yield StepMeter(captured, module, inputs, processes)


def test_an_op_takes_the_time_of_the_views_before_it(meter: StepMeter) -> None:
    graph = meter.captured.graph
    seconds = meter.op_seconds(1, 2)
    ran = [task.program.instructions for task in meter.processes.tasks]  # type: ignore[attr-defined]
    ops = [at for at, each in enumerate(ran[1]) if isinstance(each, Call) and each.op >= 0]
    assert len(ran[1]) > len(ops) > 100  # there are views
    expected = np.zeros(graph.n_ops)
    for at, before in zip(ops, [-1, *ops], strict=False):
        expected[ran[1][at].op] += at - before
    updates = list(meter.captured.op_of_update.values())
    assert seconds[updates].sum() == pytest.approx(1)
    seconds[updates] = 0
    assert seconds.tolist() == expected.tolist()
