"""Models with custom operators run on devices, whose processes import the modules that define them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from agent import place
from envs.runtime.device_program import ExecutionError
from envs.runtime.user_ops import import_ops, modules_with_ops
from tests.envs.runtime.custom_ops import scaled
from tests.envs.runtime.small_models import assert_trains_as_plain

OPTIONS = {"lr": 0.1}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return scaled(self.second(scaled(self.first(x), 2.0)).square(), 0.5).mean()


def test_a_step_with_custom_ops_equals_the_plain_step() -> None:
    module, inputs = Net().double(), (torch.arange(24.0).view(4, 6).double() / 24,)
    plan = place(module, inputs, cluster="2xk80", placer="round-robin", optimizer="sgd")
    devices = {plan.device_of[name] for name in plan.graph.op_names if "scaled" in name}
    assert len(devices) == 2
    with plan.compile(module, devices=["cpu", "cpu"], timeout_s=60, **OPTIONS) as runner:
        assert_trains_as_plain(runner, module, inputs, 1, **OPTIONS)


def test_modules_that_define_ops_come_before_those_of_the_model() -> None:
    names = ["getitem", "aten.mm.default", "placewalk_tests.scaled.default"]
    assert modules_with_ops(names, Net()) == ("tests.envs.runtime.custom_ops", __name__)
    assert modules_with_ops(["aten.mm.default"], nn.Linear(1, 1)) == ()


def test_an_op_of_the_script_that_runs_is_refused_in_one_line() -> None:
    names = ["aten.mm.default", "placewalk_tests.missing.default"]
    with pytest.raises(
        ExecutionError, match=r"^op 'placewalk_tests.missing.default' is not known to the processes"
    ):
        import_ops(names, modules_with_ops(names, Net()))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import not_there", "ops_that_fail.py:1: ModuleNotFoundError: No module named 'not_there'"),
        ("raise SystemExit(3)", "ops_that_fail.py:1: it calls sys.exit(3); leave that out"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(
    code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ops_that_fail.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    said = f"cannot import 'ops_that_fail', which may define op 'placewalk_tests.missing.default': {reason}"
    with pytest.raises(ExecutionError, match=f"^{re.escape(said)}$"):
        import_ops(["placewalk_tests.missing.default"], ["ops_that_fail"])


def test_ops_that_are_known_import_nothing() -> None:
    import_ops(["aten.mm.default", "placewalk_tests.scaled.default"], ["not_there"])
