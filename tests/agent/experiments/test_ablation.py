from dataclasses import replace

import pytest

from agent.commands import train as train_agent
from agent.experiments import ablation
from agent.experiments.ablation import (
    EVALUATION,
    FULL_MODEL,
    NEVER_SEEN,
    TRAINED,
    VARIANTS,
    against_full_model,
    flags_of,
    to_markdown,
)
from agent.experiments.launcher import trained, trials_of
from tests.agent.trial_cases import trial, write_evaluation


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_change_what_there_is_to_change(variant):
    changes = {FULL_MODEL: {}, variant: VARIANTS[variant]}
    (full, changed) = trials_of(ablation.CONFIG, 1, changes, [3]) if variant != FULL_MODEL else (None, None)
    words = ["--config", str(ablation.CONFIG), *flags_of(variant).split(), "--name", "x"]
    given = vars(train_agent.make_parser().parse_args(words))
    assert given.keys() >= VARIANTS[variant].keys()
    if full is not None:
        assert changed.config != replace(full.config, name=changed.name)
        assert (changed.config.seed, changed.config.threads, changed.config.minutes) == (3, 1, 1.0)


def test_a_variant_is_compared_with_the_full_model_graph_by_graph(tmp_path, monkeypatch):
    def evaluated(variant, *times):
        folder = trained(ablation.STUDY, variant, 0) / EVALUATION
        write_evaluation(folder, *(trial(*each[:3], family=each[3]) for each in times))

    monkeypatch.chdir(tmp_path)
    known, new = ablation.FAMILIES[0], ablation.OTHERS[0]
    evaluated(
        FULL_MODEL,
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
    compared = against_full_model("rounds-1", [0])
    assert {column: each.centre for column, each in compared.items() if each.ratios} == {
        ("policy", TRAINED): pytest.approx(2.0),
        ("policy", NEVER_SEEN): pytest.approx(1.0),
        ("policy-sample", NEVER_SEEN): pytest.approx(0.5),
    }
    table = to_markdown([FULL_MODEL, "rounds-1", "rounds-8"], [0]).splitlines()
    one = "1.000 (1.000 to 1.000)"
    assert table[2] == f"| full-model |  | {one} | {one} |  | {one} |"
    assert table[3].split(" | ")[2:] == ["2.000 (2.000 to 2.000)", one, "", "0.500 (0.500 to 0.500) |"]
    assert table[4] == "| rounds-8 | `--rounds 8` |  |  |  |  |"


def test_rows_hold_the_numbers_of_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for variant, step_s in ((FULL_MODEL, 0.5), ("rounds-1", 1.0)):
        folder = trained(ablation.STUDY, variant, 0) / EVALUATION
        write_evaluation(folder, trial("a", "policy", step_s, family=ablation.FAMILIES[0]))
    flags = ["--variants", FULL_MODEL, "rounds-1", "--only", "table", "--rows", "rows.csv"]
    assert ablation.main(flags) == 0
    assert "| rounds-1 | `--rounds 1` | 2.000 (2.000 to 2.000) |" in capsys.readouterr().out
    assert (tmp_path / "rows.csv").read_text().splitlines() == [
        "variant,flags,families,placer,ratio,low,high,spread_over_trainings,graphs",
        "full-model,,trained families,policy,1.0,1.0,1.0,,1",
        "rounds-1,'--rounds 1,trained families,policy,2.0,2.0,2.0,,1",
    ]
