"""Parts of experiments: what fails is told in one line."""

from agent.evaluation.failures import Failure
from agent.evaluation.run import EvaluationResult
from agent.experiments import launcher
from agent.experiments.command import exit_code
from tests.agent.evaluation_cases import make_trial


def test_an_evaluation_with_a_failed_trial_is_one_line(tmp_path, monkeypatch, capsys):
    found = EvaluationResult([], [Failure(make_trial().key, 1, "no memory")])
    monkeypatch.setattr(launcher, "evaluate", lambda *_, **__: found)
    assert exit_code("experiment", lambda: launcher.evaluated(None, tmp_path)) == 1
    assert f"1 trials failed; see {tmp_path / 'failures.csv'}" in capsys.readouterr().err
