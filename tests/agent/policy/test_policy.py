"""Encoders, network and policy: equivariance, caching, gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agent.policy.encoders.base import ENCODERS
from agent.policy.graph_data import Batch, Data, graph_data
from agent.policy.network import PlacementNetwork
from agent.policy.policy import MASKED_LOGIT, Policy
from agent.policy.shape import current_shape
from agent.policy.threads import in_threads, scores_in_threads
from envs.placement.observation.features import N_DEVICE_FEATURES, columns_of
from tests.agent.placement_cases import random_problem

CPU = torch.device("cpu")


def graph(edges: list[tuple[int, int]], n_nodes: int) -> Data:
    """A graph with random features, float64."""
    x = torch.rand(n_nodes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Data(x=x, edge_index=torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T)


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
    data = graph_data(random_problem(0), CPU)
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))
    moved = Data(x=data.x[order], edge_index=torch.argsort(order)[data.edge_index])
    torch.manual_seed(0)
    model = ENCODERS[encoder](data.num_features, 16, 3)
    torch.testing.assert_close(model(moved), model(data)[order])


@pytest.mark.parametrize("encoder", ENCODERS)
def test_graphs_of_a_batch_do_not_meet(encoder: str) -> None:
    graphs = [graph_data(random_problem(seed), CPU) for seed in range(3)]
    torch.manual_seed(0)
    network = PlacementNetwork(current_shape(encoder, 16, 3))

    def contexts(graphs: list[Data]) -> Tensor:
        data = Batch.from_data_list(graphs)
        return network.contexts(*network.encode(data), data.batch)

    alone = torch.cat([contexts([each]) for each in graphs])
    torch.testing.assert_close(contexts(graphs), alone)


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


def test_sage_is_the_message_passing_of_a_plain_loop() -> None:
    torch.manual_seed(0)
    model, data = ENCODERS["sage"](3, 8, 2).double(), graph(edges=[(0, 1), (0, 2), (1, 2)], n_nodes=4)
    weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    neighbours = {"along": [[], [0], [0, 1], []], "against": [[1, 2], [2], [], []]}

    def linear(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def norm(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        centred = values - values.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt(values.var(axis=1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    state = linear("input_proj", data.x.numpy())
    for name in ("rounds.0", "rounds.1"):
        message = norm(f"{name}.norm", state)
        aggregate = linear(f"{name}.along.lin_r", message)
        for way, of_node in neighbours.items():
            means = [message[nodes].mean(axis=0) if nodes else np.zeros(8) for nodes in of_node]
            aggregate += linear(f"{name}.{way}.lin_l", np.stack(means))
        state = state + aggregate / (1 + np.exp(-aggregate))
    np.testing.assert_allclose(model(data).detach().numpy(), norm("norm", state), rtol=1e-12)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_graph_without_edges_is_embedded(encoder: str) -> None:
    embedding = ENCODERS[encoder](3, 8, 2).double()(graph(edges=[], n_nodes=2))
    assert embedding.shape == (2, 8)
    assert embedding.isfinite().all()


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


@pytest.mark.parametrize(("threads", "n_problems", "n_rows"), [(2, 1, 32), (2, 3, 32), (5, 3, 1)])
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
    policy = make_policy(n_devices=n_devices)
    logits, values = policy.scores(observations(policy, n_devices=n_devices))
    assert logits.shape == (32, n_devices)
    assert torch.isfinite(values).all()


def test_a_weight_that_no_job_uses_gets_no_gradient_and_two_runs_are_equal_to_the_bit() -> None:
    torch.manual_seed(0)
    network, unused = nn.Linear(3, 8).double(), nn.Parameter(torch.zeros(2))
    rows = torch.randn(12, 3, dtype=torch.float64).chunk(3)
    gradients = []
    for _ in range(2):
        network.zero_grad()
        jobs = [lambda part=part: (network(part),) for part in rows]
        parts = in_threads(jobs, [*network.parameters(), unused])
        torch.cat([outputs for (outputs,) in parts]).square().sum().backward()
        assert unused.grad is None
        gradients.append(network.weight.grad)
    assert torch.equal(*gradients)


def test_an_error_in_a_job_comes_out() -> None:
    def fail() -> tuple[Tensor, ...]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        in_threads([fail, fail], [torch.zeros(1, requires_grad=True)])
