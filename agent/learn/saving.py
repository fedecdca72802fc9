"""The state of `PlacementPPO` as tensors and JSON: weights, optimizer, counters and callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from agent.learn.checkpoints import Checkpoint, CheckpointError, under


@runtime_checkable
class Stateful(Protocol):
    """A callback whose state is saved with the model; a model has at most one of each class."""

    def state_dict(self) -> dict[str, Any]:
        """Returns tensors and JSON values by name."""

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from such a state.

        Raises:
            LookupError, RuntimeError, TypeError, ValueError: the state is not of this callback.
        """


class Saved(Protocol):
    """The attributes of `PlacementPPO` that are its state."""

    policy: Any
    num_timesteps: int
    updates: int
    _n_updates: int
    stateful_callbacks: list[Stateful]


def capture(ppo: Saved) -> Checkpoint:
    """Captures weights, optimizer, counters and callbacks between two updates."""
    tensors = {f"policy/{name}": tensor for name, tensor in ppo.policy.state_dict().items()}
    for index, slots in ppo.policy.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{slot}": torch.as_tensor(value) for slot, value in slots.items()}
    callbacks: dict[str, dict[str, Any]] = {}
    for callback in ppo.stateful_callbacks:
        name, state = type(callback).__name__, callback.state_dict()
        callbacks[name] = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
        tensors |= {f"{name}/{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    counters = {"timesteps": ppo.num_timesteps, "updates": ppo.updates, "epochs": ppo._n_updates}
    return Checkpoint(tensors, {**counters, "callbacks": callbacks})


def restore(ppo: Saved, checkpoint: Checkpoint) -> None:
    """Restores weights, optimizer and counters in a new PPO.

    Raises:
        LookupError, RuntimeError, TypeError, ValueError: the checkpoint is of another network.
    """
    tensors, state = checkpoint.tensors, checkpoint.state
    ppo.policy.load_state_dict(under("policy/", tensors))
    slots, weights = dict[int, dict[str, Tensor]](), list(ppo.policy.parameters())
    for name, tensor in under("optimizer/", tensors).items():
        index, slot = name.split("/")
        slots.setdefault(int(index), {})[slot] = tensor
        if tensor.shape not in (weights[int(index)].shape, ()):  # torch would find that much later
            raise ValueError(f"optimizer/{name} has the shape {tuple(tensor.shape)}")
    groups = ppo.policy.optimizer.state_dict()["param_groups"]
    ppo.policy.optimizer.load_state_dict({"state": slots, "param_groups": groups})
    ppo.num_timesteps, ppo.updates, ppo._n_updates = state["timesteps"], state["updates"], state["epochs"]


def restore_callbacks(callbacks: Iterable[Stateful], checkpoint: Checkpoint) -> None:
    """Restores those callbacks whose class was saved.

    Raises:
        CheckpointError, LookupError, RuntimeError, TypeError, ValueError: a state is not of its callback.
    """
    saved = checkpoint.state["callbacks"]
    for callback in callbacks:
        name = type(callback).__name__
        if name in saved:
            callback.load_state_dict({**saved[name], **under(f"{name}/", checkpoint.tensors)})


def check_policy(network: nn.Module, checkpoint: Checkpoint) -> None:
    """Checks that a captured state has the weights of a network that was saved with it.

    Raises:
        CheckpointError: they differ.
    """
    saved = under("policy/placer.network.", checkpoint.tensors)
    for name, weights in network.state_dict().items():
        if name not in saved or not torch.equal(weights.cpu(), saved[name]):
            raise CheckpointError(
                f"{checkpoint.path}: was not saved with the policy beside it ({name} differs); "
                "put the files of one save together, or read the policy alone with load_policy"
            )
