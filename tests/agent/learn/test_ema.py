import pytest
import torch

from agent.learn.callbacks import AverageWeights
from envs.placement.vec_env import PlacementVecEnv
from tests.agent.learn.test_ppo import make, problems


def test_the_average_forgets_by_its_decay_and_sooner_at_first():
    ppo, average = make(PlacementVecEnv(problems(1), 2)), AverageWeights(decay=0.5)
    average.init_callback(ppo)
    average.on_training_start({}, {})

    def after_update_to(value):
        with torch.no_grad():
            for weight in ppo.policy.placer.network.parameters():
                weight.fill_(value)
        ppo.updates += 1
        average.on_rollout_start()
        average.on_rollout_start()  # a second call for the same update
        return next(average.policy.network.parameters()).flatten()[0].item()

    # Kept of the average: nothing, then 2/11, then 3/12.
    seen = [after_update_to(value) for value in (8.0, 0.0, 0.0)]
    assert seen == pytest.approx([8.0, 8 * 2 / 11, 8 * 2 / 11 * 3 / 12])
    for _ in range(20):
        before = after_update_to(0.0)
    assert after_update_to(0.0) == pytest.approx(before / 2)
