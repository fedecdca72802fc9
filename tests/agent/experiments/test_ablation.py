import pytest

from agent.commands import train as train_agent
from agent.experiments import ablation
from agent.experiments.ablation import (
    ARMS,
    EVALUATION,
    NEVER_SEEN,
    TRAINED,
    WHOLE,
    against_whole,
    name_of,
    to_markdown,
)
from tests.agent.trial_cases import trial, write_evaluation


@pytest.mark.parametrize("arm", ARMS)
def test_arms_change_what_there_is_to_change(arm):
    words = ["--config", str(ablation.CONFIG), *ARMS[arm], "--families", *ablation.FAMILIES, "--name", "x"]
    train_agent.make_parser().parse_args(words)


def test_an_arm_is_compared_with_the_whole_graph_by_graph(tmp_path, monkeypatch):
    def evaluated(arm, *times):
        folder = ablation.run_folder(name_of(arm, 0)) / EVALUATION
        write_evaluation(folder, *(trial(*each[:3], family=each[3]) for each in times))

    monkeypatch.chdir(tmp_path)
    known, new = ablation.FAMILIES[0], ablation.OTHERS[0]
    evaluated(
        WHOLE,
        ("a", "policy", 0.5, known),
        ("b", "policy", 0.5, known),
        ("c", "policy", 0.4, new),
        ("c", "policy-sample", 0.4, new),
    )
    evaluated(
        "rounds-1",
        ("a", "policy", 1.0, known),
        ("c", "policy", 0.4, new),
        ("c", "policy-sample", 0.2, new),
    )
    compared = against_whole("rounds-1", [0])
    assert {column: each.centre for column, each in compared.items() if each.ratios} == {
        ("policy", TRAINED): pytest.approx(2.0),
        ("policy", NEVER_SEEN): pytest.approx(1.0),
        ("policy-sample", NEVER_SEEN): pytest.approx(0.5),
    }
    table = to_markdown([WHOLE, "rounds-1", "rounds-8"], [0]).splitlines()
    one = "1.000 (1.000 to 1.000)"
    assert table[2] == f"| whole |  | {one} | {one} |  | {one} |"
    assert table[3].split(" | ")[2:] == ["2.000 (2.000 to 2.000)", one, "", "0.500 (0.500 to 0.500) |"]
    assert table[4] == "| rounds-8 | `--rounds 8` |  |  |  |  |"
