"""Settings of an evaluation: their defaults, their checks, and what they are read as."""

import pytest

from agent.evaluation.config import BUDGET, EvaluationConfig, EvaluationError
from agent.evaluation.inputs import make_budget
from agent.evaluation.policies import open_policy
from agent.placers.base import PLACERS, Budget
from agent.policy.placers import LEARNED
from graphs.io.graph_files import write_graphs
from graphs.orders import ORDERS
from tests.agent.placement_cases import training_graph


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "graph.json"
    write_graphs(path, [training_graph(2, 1)])
    return str(path)


def test_defaults_are_every_placer_in_program_order_with_the_usual_budget(file):
    spec, left_out = EvaluationConfig(graphs=(file,)).spec()
    assert spec.placers == (*PLACERS, *LEARNED)
    assert spec.orders == ("topo",)
    assert spec.budget == Budget(BUDGET)
    assert (spec.seeds, left_out) == (3, [])
    assert spec.policy is not None
    assert spec.policy.digest == open_policy("pretrained", []).digest


def test_all_names_every_placer_and_every_order(file):
    spec, _ = EvaluationConfig(graphs=(file,), placers=("all",), orders=("all",)).spec()
    assert spec.placers == (*PLACERS, *LEARNED)
    assert spec.orders == tuple(ORDERS)


@pytest.mark.parametrize(
    ("evaluations", "seconds", "budget"),
    [
        (None, None, Budget(BUDGET)),
        (7, None, Budget(7)),
        (None, 2.0, Budget(None, 2.0)),
        (7, 2.0, Budget(7, 2.0)),
    ],
)
def test_seconds_alone_leave_evaluations_without_limit(evaluations, seconds, budget):
    assert make_budget(evaluations, seconds) == budget


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"seeds": 0}, "seeds is 0; use at least 1"),
        ({"budget": 0}, "budget is 0; use at least 1"),
        ({"seconds": 0.0}, "seconds is 0.0; use more than 0"),
        ({"coarsen": 0}, "coarsen is 0; use at least 1"),
        ({"cluster": []}, "cluster is empty; give at least one"),
        ({"placer": ["heft"]}, "unknown key 'placer'; use families"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(EvaluationError, match=message):
        EvaluationConfig.from_json(setting, "command line")
