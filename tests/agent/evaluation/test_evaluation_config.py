"""Settings of an evaluation: their defaults, their checks, and what they are read as."""

import pytest
import torch

from agent.evaluation.config import EvaluationConfig, EvaluationError
from agent.evaluation.inputs import make_spec
from agent.placers.base import Budget, names_of
from agent.placing.request import BUDGET, Request
from agent.placing.trial_runner import open_policy
from envs.cluster.files import write_cluster
from envs.cluster.presets import get_cluster, uniform
from graphs.capture.user_model import SourceError
from graphs.io.graph_files import write_graphs
from graphs.orders import ORDERS
from tests.agent.placement_cases import training_graph


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "graph.json"
    write_graphs(path, [training_graph(2, 1)])
    return str(path)


def test_defaults_are_every_placer_in_program_order_with_the_usual_budget(file):
    spec, left_out = make_spec(EvaluationConfig(graphs=(file,)))
    assert spec.placers == (*names_of("step"), "data-parallel")
    assert spec.orders == ("topo",)
    assert spec.budget == Budget(BUDGET)
    assert (spec.seeds, left_out) == (3, [])
    assert spec.policy is not None
    assert spec.policy.digest == open_policy("pretrained").digest
    all_of_them, _ = make_spec(EvaluationConfig(graphs=(file,), placers=("all",), orders=("all",)))
    assert all_of_them.placers == spec.placers
    assert set(all_of_them.orders) == set(ORDERS)


def test_two_graphs_of_one_name_are_refused(file, tmp_path):
    write_graphs(tmp_path / "again.json", [training_graph(2, 2)])
    with pytest.raises(SourceError, match="two graphs are named 'toy'; results are stored by name"):
        make_spec(EvaluationConfig(graphs=(file, str(tmp_path / "again.json"))))


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
    assert Request(budget=evaluations, seconds=seconds).limits == budget


@pytest.mark.parametrize("setting", [{"optimizer": "sgd"}, {"inference": True}, {"prompt": 4}])
def test_how_a_model_is_captured_needs_a_model(file, setting):
    with pytest.raises(EvaluationError, match="give --model"):
        make_spec(EvaluationConfig(graphs=(file,), **setting))


def test_graphs_are_costed_in_the_precision_that_is_asked_for(file):
    spec, _ = make_spec(EvaluationConfig(graphs=(file,), placers=("single",), precision="bf16"))
    plain, _ = make_spec(EvaluationConfig(graphs=(file,), placers=("single",)))
    assert spec.graphs[0].tensor_bytes.sum() == plain.graphs[0].tensor_bytes.sum() / 2
    assert spec.to_json() != plain.to_json()


def test_a_graph_of_the_training_is_seen_in_any_precision_and_granularity():
    settings = {"families": ("gpt",), "placers": ("policy",)}
    _, left_out = make_spec(EvaluationConfig(**settings))
    spec, others = make_spec(EvaluationConfig(**settings, precision="tf32", granularity="module"))
    assert left_out == others != []
    assert spec.granularity == "module"
    assert all(len(graph.units) < graph.n_ops / 3 for graph in spec.graphs)


def one_layer():
    return torch.nn.Linear(8, 8), torch.zeros(4, 8)


def test_a_model_is_captured_as_the_settings_say(tmp_path, capsys):
    settings = {"model": f"{__name__}:one_layer", "placers": ("single",)}
    (sgd,) = make_spec(EvaluationConfig(**settings, optimizer="sgd", precision="tf32"))[0].graphs
    assert sgd.op_types[-1] == "optim.sgd"
    assert sgd.dtypes[sgd.op_types.index("aten.addmm")] == "tf32"
    (forward,) = make_spec(EvaluationConfig(**settings, inference=True))[0].graphs
    assert set(forward.phases) == {"forward"}
    write_cluster(tmp_path / "xeons.json", uniform("xeons", get_cluster("gpu+cpu").devices[1], 2, 1e10))
    capsys.readouterr()
    make_spec(EvaluationConfig(**settings, cluster=("4xv100", str(tmp_path / "xeons.json"))))
    line = "cluster 'xeons' has no GPU, but gets the kernels that GPUs of the others take; "
    assert capsys.readouterr().err.count(line) == 1


def words():
    import transformers

    config = transformers.GPT2Config(n_layer=2, n_embd=8, n_head=2)
    return transformers.GPT2LMHeadModel(config), (torch.zeros(3, 5, dtype=torch.long),)


def test_a_prompt_gives_the_step_of_a_token_with_its_cache():
    pytest.importorskip("transformers", reason="transformers is not installed")
    settings = {"model": f"{__name__}:words", "prompt": 7, "placers": ("single",), "granularity": "layer"}
    (graph,) = make_spec(EvaluationConfig(**settings))[0].graphs
    assert (graph.name, len(graph.units), set(graph.phases)) == ("words", 2, {"forward"})
    cache = graph.resident_bytes[[name.startswith("past_") for name in graph.op_names]]
    assert cache.tolist() == [3 * 7 * 8 * 4] * 4


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"seconds": 0.0}, "seconds is 0.0; use more than 0"),
        ({"precision": "fp6"}, "precision is 'fp6'; use fp32 or tf32 or amp-bf16"),
        ({"granularity": "stage"}, "granularity is 'stage'; use op or module or block or layer"),
        ({"optimizer": "lion"}, "optimizer is 'lion'; use adam or sgd or adamw"),
        ({"cluster": []}, "cluster is empty; give at least one"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(EvaluationError, match=message):
        EvaluationConfig.from_json(setting, "command line")
