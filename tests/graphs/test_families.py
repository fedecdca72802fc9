"""The model families and the large models: contracts that all keep, and what their small models compute."""

from __future__ import annotations

import pytest
import torch

from graphs.families import (
    DRAWERS,
    FAMILIES,
    FamilyError,
    draw,
    family,
    gnn,
    large,
    layers,
    randwire,
    recurrent,
    ssm,
    text,
)
from tests.envs.runtime.small_models import make

LOSSES = {"cifar10": 2.026395917, "ptb": 2.399596113, "nmt": 2.523853769, "resnet": 0.07900209214}
LOSSES |= {"inception": 2.216170414, "gpt": 2.447638362, "bert": 3.324470924, "vit": 1.940996361}
LOSSES |= {"moe": 2.398628969, "randwire": 1.86136387, "llama": 3.372420919, "ssm": 4.543367085}
LOSSES |= {"gnn": 4.74855378, "t5": 2.576641979, "switch": 2.771401794}
"""Losses of small models as of commit e4863f7, whose tests have the building blocks worked out by hand."""


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def shapes(name: str, seed: int) -> list[tuple[str, tuple[int, ...]]]:
    module, inputs = draw(name, seed)
    drawn = [("input", tuple(tensor.shape)) for tensor in inputs]
    return drawn + [(key, tuple(parameter.shape)) for key, parameter in module.named_parameters()]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", [0, 5, 9])
def test_a_draw_is_one_training_step_of_its_whole_model(name: str, seed: int) -> None:
    module, inputs = draw(name, seed)
    assert all(tensor.is_meta for tensor in (*module.parameters(), *module.buffers(), *inputs))
    loss = module(*inputs)
    assert loss.shape == ()
    loss.backward()
    assert [key for key, parameter in module.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_a_seed_always_draws_the_same_model_and_seeds_differ(name: str) -> None:
    assert shapes(name, 1) == shapes(name, 1)
    assert len({str(shapes(name, seed)) for seed in range(6)}) == 6


@pytest.mark.parametrize("name", LOSSES)
def test_a_small_model_of_a_family_has_the_loss_of_before(name: str) -> None:
    module, inputs = make(name)
    assert module(*inputs).item() == pytest.approx(LOSSES[name], rel=1e-8)


def test_an_unknown_family_is_answered_with_the_known_ones() -> None:
    with pytest.raises(FamilyError, match=r"^unknown family 'lstm'; use one of cifar10, ptb, nmt, .*switch$"):
        draw("lstm", 0)
    with pytest.raises(FamilyError, match="seed -1 is negative"):
        draw("ptb", -1)


def test_every_family_has_a_drawer_and_a_name_is_refused_twice() -> None:
    assert set(DRAWERS) == set(FAMILIES)
    with pytest.raises(FamilyError, match="family 'gpt' is registered twice"):
        family("gpt")(text.draw_gpt)
    with pytest.raises(
        FamilyError, match="family 'mlp': its number of graphs is not known; add it to FAMILIES"
    ):
        family("mlp")


def test_randwire_draws_every_kind_of_network_and_wirings_of_several_sources() -> None:
    modules = [draw("randwire", seed)[0] for seed in range(FAMILIES["randwire"])]
    kinds = [randwire.WordNetwork, randwire.RecurrentNetwork]
    counts = [sum(isinstance(module, kind) for module in modules) for kind in kinds]
    assert min(*counts, len(modules) - sum(counts)) >= 8
    stages = [part for module in modules for part in module.modules() if isinstance(part, randwire.Stage)]
    assert sum(any(len(sources) > 2 for sources in stage.wiring) for stage in stages) >= 10


@pytest.mark.parametrize("stepwise", [False, True])
def test_stepwise_and_joint_losses_of_ptb_agree(stepwise: bool) -> None:
    cell = recurrent.RecurrentCell((0, 1), ("tanh", "relu", "tanh"), 4)
    model = recurrent.RecurrentModel(cell, 7, tied=True, stepwise=False)
    words = torch.randint(7, (5, 3))
    expected = model(words, words, torch.zeros(3, 4))
    model.stepwise = stepwise
    torch.testing.assert_close(model(words, words, torch.zeros(3, 4)), expected)
    assert model.softmax.weight is model.embedding.weight


@pytest.mark.parametrize("causal", [False, True])
def test_fused_and_explicit_attention_agree(causal: bool) -> None:
    x = torch.randn(2, 5, 8)
    attention = layers.Attention(8, 2, causal=causal, joint=False, fused=False)
    expected = attention(x)
    attention.fused = True
    torch.testing.assert_close(attention(x), expected)


def test_ssm_draws_have_attention_between_in_some_and_one_chunk_in_others() -> None:
    modules = [draw("ssm", seed)[0] for seed in range(FAMILIES["ssm"])]
    attends = [any(isinstance(part, layers.Attention) for part in module.modules()) for module in modules]
    assert 1 <= sum(attends) < len(modules)
    scans = [part for module in modules for part in module.modules() if isinstance(part, ssm.SelectiveScan)]
    assert {scan.chunks for scan in scans} == {1, 2, 4, 8}


def test_gnn_draws_every_kind_of_layer_and_several_relations() -> None:
    modules = [draw("gnn", seed)[0] for seed in range(FAMILIES["gnn"])]
    layers = [part for module in modules for part in module.modules() if isinstance(part, gnn.Layer)]
    assert {type(layer.relations[0]) for layer in layers} == set(gnn.KINDS.values())
    assert {len(layer.relations) for layer in layers} == {1, 2, 3, 4}


@pytest.mark.parametrize(("model", "parameters"), [("gpt2_xl", 1_557_611_200), ("llama_7b", 6_738_415_616)])
def test_a_published_model_has_its_published_number_of_parameters(model: str, parameters: int) -> None:
    module, inputs = getattr(large, model)()
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    assert all(tensor.is_meta for tensor in (*module.parameters(), *inputs))


def test_the_sequence_model_has_eight_layers_each_way() -> None:
    module, (source, *_) = large.seq2seq()
    assert (len(module.encoder.cells), len(module.decoder.cells), len(source)) == (8, 8, 78)


def test_a_word_does_not_see_later_ones() -> None:
    torch.manual_seed(0)
    model = text.Llama(layers=2, width=16, inner=24, heads=2, vocabulary=11)
    words = torch.randint(11, (1, 6))
    changed = words.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 11
    logits, others = model.logits(words), model.logits(changed)
    assert torch.allclose(logits[:, :-1], others[:, :-1], atol=1e-6)
    assert not torch.allclose(logits[:, -1], others[:, -1])
