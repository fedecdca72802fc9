"""The table of coarse graphs: its rows as CSV, and what an unknown family is told."""

import csv

from agent.experiments import coarsening


def test_rows_hold_the_numbers_of_the_table(tmp_path, capsys):
    file = tmp_path / "rows.csv"
    assert coarsening.main(["--families", "gpt", "--groups", "700", "--rows", str(file)]) == 0
    (line,) = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("gpt"))
    with file.open() as opened:
        rows = list(csv.DictReader(opened))
    assert [row["placer"] for row in rows] == list(coarsening.PLACED_BY)
    random, heft, _ = rows
    assert random["found_over_op_by_op"] == ""
    assert [f"{float(heft[name]):.3f}" for name in coarsening.COLUMNS[-3:]] == line[4:7]


def test_an_unknown_family_is_refused_in_one_line(capsys):
    assert coarsening.main(["--families", "lstm"]) == 2
    assert capsys.readouterr().err.startswith("agent.experiments.coarsening: unknown family 'lstm'")
