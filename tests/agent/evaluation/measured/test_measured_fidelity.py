"""How well predictions agree with measurements, by known answers, and the placements that are compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.evaluation.measured.fidelity import FidelityRow, fidelity_of, varied_placements
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.dataset import load_family

ROW = FidelityRow("g", "2xcpu", "op", "drawn", 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 20, 0.0, "")


def rows(predicted: list[float], measured: list[float | None]) -> list[FidelityRow]:
    return [
        replace(ROW, predicted_s=p, measured_s=m, first_s=m, last_s=m and -m, failure="" if m else "died")
        for p, m in zip(predicted, measured, strict=True)
    ]


def test_agreement_is_of_those_that_ran() -> None:
    found = fidelity_of(rows([1.0, 2.0, 3.0, 9.0], [2.0, 1.0, 4.0, None]))
    assert found is not None
    assert found.n_placements == 3
    assert found.median_error == pytest.approx(0.5)  # of 0.5, 1 and 0.25
    assert found.p90_error == pytest.approx(0.9)
    assert found.scaled_error == pytest.approx(1 / 3)  # of 0.5, 2 and 0.75 over 0.75
    assert found.kendall == pytest.approx(1 / 3)  # two of three pairs
    assert found.spearman == pytest.approx(0.5)
    assert found.retest == pytest.approx(-1.0)
    assert found.regret == pytest.approx(1.0)  # 2 s where 1 s can be had
    assert fidelity_of(rows([1.0, 2.0], [1.0, None])) is None


def test_placements_are_distinct_spread_and_always_the_same() -> None:
    problem = Problem(load_family("gpt")[0], get_cluster("2xk80"))
    found, again = (list(varied_placements(problem, 40)) for _ in range(2))
    assert [source for source, _ in found[:2]] == ["device 0", "device 1"]
    assert len({device_of.tobytes() for _, device_of in found}) == 40
    assert all(a == b and np.array_equal(x, y) for (a, x), (b, y) in zip(found, again, strict=True))
    drawn = sorted(
        simulate_problem(problem, device_of).total_s for source, device_of in found if "drawn" in source
    )
    assert len(drawn) > 15
    assert np.diff(np.log(drawn)).max() < 0.25 * np.log(drawn[-1] / drawn[0])
