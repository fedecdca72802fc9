"""Small evaluations, for the tests of what they find and of what goes wrong."""

import csv

from agent.evaluation.results import Trial
from agent.evaluation.spec import EvaluationSpec
from agent.placers.base import Budget
from tests.agent.placement_cases import make_cluster, training_graph


def small_spec(**changes):
    settings = {
        "graphs": (training_graph(2, 2, name="a"), training_graph(3, 1, name="b")),
        "clusters": (make_cluster(2, name="two"),),
        "placers": ("single", "random"),
        "seeds": 2,
        "budget": Budget(20),
    }
    return EvaluationSpec(**(settings | changes))


def quiet(done, total):
    pass


def make_trial(**changes):
    base = {
        "graph": "g",
        "family": "f",
        "cluster": "c",
        "order": "",
        "placer": "p",
        "seed": 0,
        "step_time_s": 2.0,
        "feasible": True,
        "evaluations": 5,
        "wall_s": 0.1,
        "lower_bound_s": 1.0,
        "single_s": 4.0,
        "seen": "no",
    }
    return Trial(**(base | changes))


def trial(graph, placer, step_time_s, **changes):
    known = {"family": "toy", "evaluations": 1, "wall_s": 0.5, "lower_bound_s": 0.1, "single_s": 1.0}
    return make_trial(**(known | {"graph": graph, "placer": placer, "step_time_s": step_time_s} | changes))


def rows_of(folder, table="results.csv"):
    with (folder / table).open() as file:
        return list(csv.DictReader(file))
