from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from agent.policy.threads import in_threads


def loss_and_gradients(n_jobs: int) -> tuple[float, list[Tensor]]:
    """Half of the squared outputs of a small network over rows that are shared out among jobs."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    unused = nn.Parameter(torch.zeros(2))
    rows = torch.randn(12, 3, dtype=torch.float64)
    weights = [*network.parameters(), unused]
    parts = in_threads(
        [lambda part=part: (network(part), network(part).sum(1)) for part in rows.chunk(n_jobs)], weights
    )
    loss = 0.5 * torch.cat([outputs for outputs, _ in parts]).square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    assert unused.grad is None
    return loss.item(), [weight.grad for weight in network.parameters() if weight.grad is not None]


@pytest.mark.parametrize("n_jobs", [2, 3, 4])
def test_jobs_in_threads_have_the_gradients_of_one_job(n_jobs: int) -> None:
    loss, gradients = loss_and_gradients(1)
    shared_loss, shared_gradients = loss_and_gradients(n_jobs)
    assert shared_loss == pytest.approx(loss, rel=1e-12)
    for alone, shared in zip(gradients, shared_gradients, strict=True):
        torch.testing.assert_close(shared, alone)


def test_two_runs_are_equal_to_the_bit() -> None:
    (loss, gradients), (again, gradients_again) = loss_and_gradients(3), loss_and_gradients(3)
    assert loss == again
    assert all(torch.equal(one, other) for one, other in zip(gradients, gradients_again, strict=True))


def test_an_error_in_a_job_comes_out() -> None:
    def fail() -> tuple[Tensor, ...]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        in_threads([fail, fail], [torch.zeros(1, requires_grad=True)])
