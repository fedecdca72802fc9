"""Encoders, network and policy: equivariance, caching, gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from agent.learn.performance import scores_in_threads
from agent.policy.encoders.base import ENCODERS
from agent.policy.graph_batch import GraphBatch, GraphTensors
from agent.policy.network import PlacementNetwork
from agent.policy.policy import MASKED_LOGIT, Policy
from agent.policy.shape import NetworkShape, current_shape
from envs.placement.episodes import EpisodeBatch
from envs.placement.observation.features import N_DEVICE_FEATURES, columns_of
from tests.agent.placement_cases import random_problem

CPU = torch.device("cpu")


def make_policy(encoder: str = "sage", n_problems: int = 3, n_devices: int = 3) -> Policy:
    """A small policy over random problems, its last layer large enough for differences to show."""
    torch.manual_seed(0)
    network = PlacementNetwork(current_shape(encoder, 16, 2))
    torch.nn.init.normal_(network.actor[-1].weight)
    policy = Policy(network)
    policy.set_problems([random_problem(seed, n_devices=n_devices) for seed in range(n_problems)])
    return policy


def observations(policy: Policy, n: int = 32, n_devices: int = 3) -> dict[str, Tensor]:
    """Random decisions on the ops that an episode visits."""
    generator = torch.Generator().manual_seed(1)
    problem = torch.randint(len(policy.embeddings.graphs), (n, 1), generator=generator)
    visited = [torch.nonzero(graph.node_of >= 0).flatten() for graph in policy.embeddings.graphs]
    draws = torch.randint(10, (n,), generator=generator)
    op = torch.stack([visited[int(i)][draw] for i, draw in zip(problem, draws, strict=True)])[:, None]
    devices = torch.randn(n, n_devices * policy.network.shape.device_features, generator=generator)
    mask = torch.rand(n, n_devices, generator=generator) < 0.8
    mask[:, 0] = True
    return {"problem": problem, "op": op, "devices": devices, "mask": mask.to(torch.int8)}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_permuting_nodes_permutes_embeddings(encoder: str) -> None:
    graph = GraphTensors.of(random_problem(0), CPU)
    order = torch.randperm(len(graph.nodes), generator=torch.Generator().manual_seed(0))
    place = torch.argsort(order)
    edges = place[graph.edges]
    edges = edges[:, torch.argsort(edges[0], stable=True)]
    moved = GraphTensors(graph.nodes[order], graph.graph, edges, graph.node_of)
    torch.manual_seed(0)
    model = ENCODERS[encoder](graph.nodes.shape[1], 16, 3)
    expected = model(GraphBatch.of([graph]))[order]
    torch.testing.assert_close(model(GraphBatch.of([moved])), expected)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_graphs_of_a_batch_do_not_meet(encoder: str) -> None:
    parts = [GraphTensors.of(random_problem(seed), CPU) for seed in range(3)]
    torch.manual_seed(0)
    network = PlacementNetwork(current_shape(encoder, 16, 3))

    def contexts(batch: GraphBatch) -> Tensor:
        return network.contexts(*network.encode(batch), batch.member)

    alone = torch.cat([contexts(GraphBatch.of([part])) for part in parts])
    torch.testing.assert_close(contexts(GraphBatch.of(parts)), alone)


def test_a_policy_that_sees_the_state_alone_is_blind_to_the_lookahead() -> None:
    torch.manual_seed(0)
    network = PlacementNetwork(current_shape("none", 16, 1, "state"))
    context, usable = torch.randn(5, 32), torch.ones(5, 3, dtype=torch.bool)
    devices = torch.randn(5, 3, N_DEVICE_FEATURES)
    logits, values = network(context, devices, usable)
    other = torch.randn_like(devices)
    other[..., columns_of("state")] = devices[..., columns_of("state")]
    torch.testing.assert_close(network(context, other, usable), (logits, values))
    assert not torch.equal(network(context, torch.randn_like(devices), usable)[0], logits)


def test_mean_of_neighbours_by_hand() -> None:
    edges = torch.tensor([[0, 0, 1], [1, 2, 2]])
    graph = GraphTensors(torch.zeros(3, 1), torch.zeros(1), edges, torch.arange(3))
    batch = GraphBatch.of([graph])
    state = torch.tensor([[1.0], [2.0], [4.0]])
    assert batch.mean_of_producers(state).flatten().tolist() == [0.0, 1.0, 1.5]
    assert batch.mean_of_consumers(state).flatten().tolist() == [3.0, 4.0, 0.0]
    assert batch.mean_of_graph(state).flatten().tolist() == [pytest.approx(7 / 3)]
    assert batch.with_neighbours(state).tolist() == [[1.0, 0.0, 3.0], [2.0, 1.0, 4.0], [4.0, 1.5, 0.0]]


def test_compiled_neighbours_are_those_of_torch_with_gradients() -> None:
    batch = GraphBatch.of([GraphTensors.of(random_problem(seed), torch.device("cpu")) for seed in range(3)])
    states = [torch.randn(len(batch.nodes), 5, requires_grad=True) for _ in range(2)]
    states[1].data = states[0].detach().clone()
    compiled = batch.with_neighbours(states[0])
    plain = torch.cat([states[1], batch.mean_of_producers(states[1]), batch.mean_of_consumers(states[1])], 1)
    torch.testing.assert_close(compiled, plain)
    weights = torch.randn_like(plain)
    gradients = [
        torch.autograd.grad((out * weights).sum(), each)[0]
        for out, each in zip((compiled, plain), states, strict=True)
    ]
    torch.testing.assert_close(*gradients)


def test_a_graph_without_edges() -> None:
    graph = GraphTensors(
        torch.zeros(2, 1), torch.zeros(1), torch.zeros(2, 0, dtype=torch.int64), torch.arange(2)
    )
    assert GraphBatch.of([graph]).mean_of_producers(torch.ones(2, 3)).tolist() == [[0.0] * 3] * 2


def test_permuting_devices_permutes_scores() -> None:
    policy = make_policy()
    obs = observations(policy)
    order = torch.tensor([2, 0, 1])
    rows = obs["devices"].reshape(32, 3, -1)[:, order].reshape(32, -1)
    moved = {**obs, "devices": rows, "mask": obs["mask"][:, order]}
    logits, values = policy.scores(obs)
    moved_logits, moved_values = policy.scores(moved)
    torch.testing.assert_close(moved_logits, logits[:, order])
    torch.testing.assert_close(moved_values, values)


def test_devices_that_do_not_exist_change_nothing() -> None:
    policy = make_policy()
    obs = observations(policy)
    width = policy.network.shape.device_features
    padding = torch.full((32, 2 * width), 1e3)
    nowhere = torch.zeros(32, 2, dtype=torch.int8)
    padded = {
        **obs,
        "devices": torch.cat([obs["devices"], padding], 1),
        "mask": torch.cat([obs["mask"], nowhere], 1),
    }
    logits, values = policy.scores(obs)
    padded_logits, padded_values = policy.scores(padded)
    torch.testing.assert_close(padded_logits[:, :3], logits)
    torch.testing.assert_close(padded_values, values)
    assert (padded_logits[:, 3:] == MASKED_LOGIT).all()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_cached_and_fresh_scores_agree(encoder: str) -> None:
    policy = make_policy(encoder)
    obs = observations(policy)
    for other in (policy.scores_for_update, policy.scores_of_encoded):
        for cached, fresh in zip(policy.scores(obs), other(obs), strict=True):
            torch.testing.assert_close(cached, fresh)


@pytest.mark.parametrize("n_rows", [1, 32])
@pytest.mark.parametrize("n_problems", [1, 3])
@pytest.mark.parametrize("threads", [2, 5])
def test_threads_share_an_update_without_changing_it(threads: int, n_problems: int, n_rows: int) -> None:
    policy = make_policy(n_problems=n_problems)
    obs = observations(policy, n_rows)

    def update(threads: int) -> tuple[Tensor, ...]:
        logits, values = scores_in_threads(policy, obs, threads)
        loss = logits.log_softmax(1)[:, 0].sum() + values.square().sum()
        return logits, values, *torch.autograd.grad(loss, policy.network.parameters())

    for expected, found in zip(update(1), update(threads), strict=True):
        torch.testing.assert_close(found, expected)


def test_an_update_empties_the_cache() -> None:
    policy = make_policy()
    obs = observations(policy)
    before, _ = policy.scores(obs)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    policy.scores_for_update(obs)[1].sum().backward()
    optimizer.step()
    after, _ = policy.scores(obs)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, policy.scores_for_update(obs)[0])


def test_what_is_encoded_has_the_gradients_of_all_but_the_encoder() -> None:
    policy = make_policy(n_problems=3)
    obs, network = observations(policy), policy.network
    gradients = []
    for scores in (policy.scores_for_update, policy.scores_of_encoded):
        network.zero_grad()
        (scores(obs)[0].log_softmax(1)[:, 0].sum() + scores(obs)[1].square().sum()).backward()
        gradients.append({name: weight.grad for name, weight in network.named_parameters()})
    for name, expected in gradients[0].items():
        if name.startswith("encoder."):
            assert gradients[1][name] is None
        else:
            torch.testing.assert_close(gradients[1][name], expected)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_parameter_gets_a_gradient(encoder: str) -> None:
    policy = make_policy(encoder)
    logits, values = policy.scores_for_update(observations(policy))
    (logits.log_softmax(1)[:, 0].sum() + values.square().sum()).backward()
    for name, parameter in policy.named_parameters():
        # A bias before the softmax over devices moves all logits alike.
        if name != "network.actor.3.bias":
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("n_devices", [1, 2, 8])
def test_one_network_acts_on_any_number_of_devices(n_devices: int) -> None:
    policy = make_policy(n_problems=1)
    problem = random_problem(5, n_devices=n_devices)
    policy.set_problems([problem])
    batch = EpisodeBatch([problem], 2)
    for episode in range(2):
        batch.begin(episode, 0, 0, np.random.default_rng(0))
    seen = {name: torch.from_numpy(rows) for name, rows in batch.observation._asdict().items()}
    logits, values = policy.scores(seen)
    assert logits.shape == (2, n_devices)
    assert torch.isfinite(values).all()


def test_first_policy_is_nearly_uniform() -> None:
    torch.manual_seed(0)
    network = PlacementNetwork(NetworkShape("none", 16, 1, 4, 2, 5))
    logits, _ = network(torch.randn(8, 32), torch.randn(8, 3, 5), torch.ones(8, 3, dtype=torch.bool))
    assert logits.abs().max() < 0.1
