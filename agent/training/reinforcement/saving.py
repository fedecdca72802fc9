"""The whole state of an algorithm of stable-baselines3 as tensors and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from sb3_contrib import MaskablePPO

from agent.training.checkpoints import Checkpoint, CheckpointError, under


def capture(ppo: MaskablePPO) -> Checkpoint:
    """Captures weights, optimizer and random generators between two updates."""
    tensors = {f"policy/{name}": tensor for name, tensor in ppo.policy.state_dict().items()}
    for index, slots in ppo.policy.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{slot}": torch.as_tensor(value) for slot, value in slots.items()}
    tensors["random/torch"] = torch.get_rng_state()
    generator = np.random.get_state(legacy=False)  # noqa: NPY002 (SB3 shuffles with it)
    tensors["random/numpy"] = torch.from_numpy(generator["state"]["key"].astype(np.int64))
    return Checkpoint(
        tensors,
        {
            "timesteps": ppo.num_timesteps,
            "updates": ppo._n_updates,
            "random": {
                "pos": generator["state"]["pos"],
                "has_gauss": generator["has_gauss"],
                "gauss": generator["gauss"],
            },
        },
    )


def restore(ppo: MaskablePPO, checkpoint: Checkpoint) -> None:
    """Restores a captured state in a new PPO, which then continues as the captured one would have.

    Raises:
        LookupError, RuntimeError, TypeError, ValueError: the checkpoint is of another network.
    """
    tensors, state = checkpoint.tensors, checkpoint.state
    ppo.policy.load_state_dict(under("policy/", tensors))
    slots: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in under("optimizer/", tensors).items():
        index, slot = name.split("/")
        slots.setdefault(int(index), {})[slot] = tensor
    _check_slots(slots, list(ppo.policy.parameters()))
    groups = ppo.policy.optimizer.state_dict()["param_groups"]
    ppo.policy.optimizer.load_state_dict({"state": slots, "param_groups": groups})
    torch.set_rng_state(tensors["random/torch"])
    generator = {
        "bit_generator": "MT19937",
        "state": {"key": tensors["random/numpy"].numpy().astype(np.uint32), "pos": state["random"]["pos"]},
        "has_gauss": state["random"]["has_gauss"],
        "gauss": state["random"]["gauss"],
    }
    np.random.set_state(generator)  # noqa: NPY002 (SB3 shuffles with it)
    ppo.num_timesteps, ppo._n_updates = state["timesteps"], state["updates"]


def check_policy(ppo: MaskablePPO, checkpoint: Checkpoint) -> None:
    """Checks that a captured state has the weights of a policy that was saved with it.

    Raises:
        CheckpointError: they differ.
    """
    saved = under("policy/", checkpoint.tensors)
    for name, weights in ppo.policy.state_dict().items():
        if name in saved and not torch.equal(weights.cpu(), saved[name]):
            raise CheckpointError(
                f"{checkpoint.path}: was not saved with the policy beside it ({name} differs); "
                "put the files of one save together, or read the policy alone with load_policy"
            )


def _check_slots(slots: Mapping[int, Mapping[str, torch.Tensor]], weights: Sequence[torch.Tensor]) -> None:
    """Checks the optimizer's tensors, by index of the weights; torch would find a wrong shape much later."""
    for index, each in slots.items():
        for slot, tensor in each.items():
            if tensor.shape not in (weights[index].shape, ()):
                raise ValueError(f"optimizer/{index}/{slot} has the shape {tuple(tensor.shape)}")
