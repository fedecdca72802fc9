"""The policy of an evaluation: read once, made once in each process."""

import pickle
import subprocess
import sys

import pytest

from agent.evaluation.config import EvaluationConfig
from agent.evaluation.inputs import make_spec
from agent.evaluation.worker import Worker
from agent.placers.base import PLACERS, PlacerError
from agent.placing.trial_runner import make_placer, open_policy
from agent.policy import serialization
from graphs.io.graph_files import write_graphs
from tests.agent.placement_cases import training_graph


def test_an_evaluation_reads_the_policy_once_and_makes_it_once(tmp_path, monkeypatch):
    calls = []
    read, make = serialization._read_bytes, serialization.StoredPolicy.policy
    monkeypatch.setattr(serialization, "_read_bytes", lambda file: (calls.append(file.name), read(file))[1])
    monkeypatch.setattr(
        serialization.StoredPolicy, "policy", lambda stored: (calls.append("made"), make(stored))[1]
    )
    write_graphs(tmp_path / "graph.json", [training_graph(2, 1)])
    config = EvaluationConfig(
        graphs=(str(tmp_path / "graph.json"),), placers=("policy", "policy-sample"), seeds=1, budget=5
    )
    spec, _ = make_spec(config)
    worker = Worker(spec)
    for task in spec.tasks():
        worker.run(task)
    assert sorted(calls) == ["made", "policy.json", "policy.safetensors"]


def test_another_process_gets_the_same_bytes_and_makes_its_own_policy_on_arrival():
    opened = open_policy("pretrained")
    sent = pickle.dumps(opened)
    assert len(sent) < 2 * len(opened._weights)
    arrived = pickle.loads(sent)
    assert vars(arrived)["actor"] is not opened.actor
    assert arrived.digest == opened.digest
    weights, others = opened.actor.weights, arrived.actor.weights
    assert weights.keys() == others.keys()
    assert all((weights[name] == others[name]).all() for name in weights)


def test_torch_is_loaded_before_the_seconds_of_a_placer_count():
    code = (
        "import sys; from agent.placing.trial_runner import open_policy; open_policy('pretrained'); "
        "assert {'torch', 'torch_geometric.nn'} <= sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_placers_without_a_policy_need_none():
    assert make_placer("heft", None, "") is PLACERS["heft"]
    with pytest.raises(PlacerError, match="'policy' needs a policy"):
        make_placer("policy", None, "topo")
