"""What TensorBoard reads of an evaluation."""

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agent.evaluation.events import SECONDS, STEP_TAG, node_names, write_events
from agent.evaluation.run import evaluate
from tests.agent.evaluation_cases import quiet, small_spec
from tests.agent.placement_cases import training_graph


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of an evaluation, what it is of, its trials and its events."""
    folder = tmp_path_factory.mktemp("evaluation")
    spec = small_spec(placers=("single", "heft"))
    found = evaluate(spec, folder, report=quiet)
    for _ in range(2):  # the second replaces the first
        events = write_events(found.answers, found.trials)
    return found.answers, found.trials, events


def read(folder):
    assert len(list(folder.iterdir())) == 1
    return EventAccumulator(str(folder)).Reload()


def test_the_placed_graph_has_devices_and_times(written):
    answers, trials, events = written
    trial = next(each for each in trials if (each.graph, each.placer) == ("b", "heft"))
    placed = answers.of(trial)
    seen = read(events / "graphs" / "b.two" / "heft")
    nodes = seen.Graph().node
    names = node_names(placed.problem.graph)
    assert [node.name for node in nodes] == names
    assert len(set(names)) == len(names)
    devices = [placed.problem.cluster.devices[device].name for device in placed.device_of]
    assert [node.device for node in nodes] == devices
    seconds = placed.problem.op_seconds[np.arange(len(names)), placed.device_of]
    assert [node.attr[SECONDS].f for node in nodes] == pytest.approx(seconds.tolist())
    edges = {(producer, node.name) for node in nodes for producer in node.input}
    assert edges == {(names[one], names[other]) for one, other in placed.problem.graph.edges.tolist()}


def test_the_statistics_say_when_each_op_ran(written):
    answers, trials, events = written
    trial = next(each for each in trials if (each.graph, each.placer) == ("a", "heft"))
    step = answers.of(trial).step
    stats = read(events / "graphs" / "a.two" / "heft").RunMetadata(STEP_TAG).step_stats
    by_name = {each.node_name: each for device in stats.dev_stats for each in device.node_stats}
    for op, name in enumerate(node_names(answers.spec.graphs[0])):
        took_us = 1e6 * (step.finish_s[op] - step.start_s[op])
        assert by_name[name].all_end_rel_micros == pytest.approx(took_us, abs=1)
        assert by_name[name].all_start_micros == pytest.approx(1e6 * step.start_s[op], abs=1)


def test_node_names_are_valid_and_distinct():
    graph = training_graph(3, 2)
    names = node_names(graph)
    assert len(set(names)) == graph.n_ops
    assert all(name[0].isalnum() for name in names)
