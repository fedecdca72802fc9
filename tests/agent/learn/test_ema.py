import pytest
import torch

from agent.policy.network import PlacementNetwork
from agent.policy.shape import current_shape
from agent.learn.state import averaged


def set_all(network, value):
    with torch.no_grad():
        for weight in network.parameters():
            weight.fill_(value)


def test_the_average_forgets_by_its_decay_and_sooner_at_first():
    network = PlacementNetwork(current_shape("none", 4, 1))
    average = averaged(network, decay=0.5)
    seen = []
    for value in (8.0, 0.0, 0.0):
        set_all(network, value)
        average.update_parameters(network)
        seen.append(next(average.module.parameters()).flatten()[0].item())
    # Kept of the average: nothing, then 2/11, then 3/12.
    assert seen == pytest.approx([8.0, 8 * 2 / 11, 8 * 2 / 11 * 3 / 12])
    for _ in range(20):
        average.update_parameters(network)
    before = next(average.module.parameters()).flatten()[0].item()
    average.update_parameters(network)
    assert next(average.module.parameters()).flatten()[0].item() == pytest.approx(before / 2)
