"""A network without a part is blind to it, learns, and is read back from its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agent.policy.network import PlacementNetwork
from agent.policy.parts import PartError, part_names
from agent.policy.serialization import (
    PolicyCard,
    PolicyFileError,
    load_policy,
    read_card,
    save_policy,
)
from agent.policy.shape import current_shape
from envs.mdp.features import DEVICE_FEATURES, columns_of

SHAPE = ("sage", 8, 2, "rollout")
N = len(columns_of("rollout"))


def scores(network: PlacementNetwork, devices: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return network(context, devices, torch.ones(devices.shape[:2], dtype=torch.bool))[0]


@pytest.mark.parametrize("part", ["device/lookahead", "device/step_time"])
def test_a_device_feature_that_is_left_out_changes_nothing(part: str) -> None:
    torch.manual_seed(0)
    whole, without = (PlacementNetwork(current_shape(*SHAPE, out)) for out in ((), (part,)))
    without.load_state_dict(whole.state_dict())
    devices, context = torch.randn(3, 4, N), torch.randn(3, 16)
    name, changed = part.removeprefix("device/"), devices.clone()
    columns = [at for at, each in enumerate(DEVICE_FEATURES) if name in (each.name, each.group)]
    changed[..., columns] = torch.randn(3, 4, len(columns))
    assert torch.equal(scores(without, devices, context), scores(without, changed, context))
    assert not torch.equal(scores(whole, devices, context), scores(whole, changed, context))


def test_heads_that_do_not_read_the_devices_score_them_alike() -> None:
    network = PlacementNetwork(current_shape(*SHAPE, ("head/devices",)))
    found = scores(network, torch.randn(3, 4, N), torch.randn(3, 16))
    assert torch.equal(found, found[:, :1].expand(3, 4))


def test_every_part_can_be_left_out_and_read_back(tmp_path: Path) -> None:
    for part in part_names("rollout", 2):
        shape = current_shape(*SHAPE, (part,))
        save_policy(tmp_path, PlacementNetwork(shape), PolicyCard(shape, (), {}))
        assert read_card(tmp_path).shape == shape
        assert load_policy(tmp_path).network.shape == shape


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PartError, match="no part 'head/luck'"):
        PlacementNetwork(current_shape(*SHAPE, ("head/luck",)))
    with pytest.raises(PartError, match="encoder none has no round 1"):
        PlacementNetwork(current_shape("none", 8, 2, "rollout", ("encoder/round-1",)))
    shape = current_shape(*SHAPE, ("head/op",))
    save_policy(tmp_path, PlacementNetwork(shape), PolicyCard(shape, (), {}))
    card = tmp_path / "policy.json"
    card.write_text(card.read_text().replace("head/op", "head/luck"))
    with pytest.raises(PolicyFileError, match="left_out: no part 'head/luck'"):
        read_card(tmp_path)
