import pytest

import train_agent
from agent import ablation
from agent.ablation import (
    ARMS,
    EVALUATION,
    NEVER_SEEN,
    TRAINED,
    WHOLE,
    against_whole,
    name_of,
    to_markdown,
)


@pytest.mark.parametrize("arm", ARMS)
def test_arms_change_what_there_is_to_change(arm):
    words = ["--config", str(ablation.CONFIG), *ARMS[arm], "--families", *ablation.FAMILIES, "--name", "x"]
    train_agent.make_parser().parse_args(words)


def test_an_arm_is_compared_with_the_whole_graph_by_graph(tmp_path, monkeypatch):
    import evaluate

    monkeypatch.chdir(tmp_path)
    for arm, placer in ((WHOLE, "heft"), ("rounds-1", "m-etf")):
        folder = ablation.run_folder(name_of(arm, 0)) / EVALUATION
        words = ["--families", "resnet", "bert", "--placers", placer, "--out", str(folder)]
        assert evaluate.main(words) == 0
    compared = against_whole("rounds-1", [0])
    assert {graph.rpartition("-")[0] for graph, _ in compared[TRAINED].ratios} == {"resnet"}
    assert {graph.rpartition("-")[0] for graph, _ in compared[NEVER_SEEN].ratios} == {"bert"}
    assert compared[TRAINED].centre == pytest.approx(1.06, abs=0.1)
    assert all(value == [0.0] for value in against_whole(WHOLE, [0])[TRAINED].ratios.values())
    table = to_markdown([WHOLE, "rounds-1", "rounds-8"], [0]).splitlines()
    assert table[2].startswith("| whole |  | 1.000 (1.000 to 1.000) |")
    assert table[4] == "| rounds-8 | `--rounds 8` |  |  |"
