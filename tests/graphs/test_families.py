"""The model families: contracts every family keeps, and known answers of their building blocks."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from graphs.families import (
    FAMILIES,
    FamilyError,
    bert,
    cifar10,
    draw,
    family,
    gnn,
    gpt,
    inception,
    moe,
    nmt,
    ptb,
    randwire,
    resnet,
    ssm,
    switch,
    t5,
    transformer,
    vit,
)
from graphs.families.registry import DRAWERS

SIDE = 32
GPT = gpt.Config(2, 16, 2, 6, 11, parallel=False, joint=False, fused=False, gated=True, tied=True)
T5 = t5.Config(1, 1, 16, 32, 2, 11, gated=True, tied=False)
SWITCH = switch.Config(
    *(2, 1, 16, 32, 2, 6, 11),
    experts=4,
    top=2,
    capacity=2.0,
    shared=False,
    gated=False,
    joint=False,
    einsum=True,
)
MOE = moe.Config(2, 1, 16, 32, 2, 6, 11, experts=4, top=2, capacity=1.0, shared=False, gated=False)


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


def test_every_family_has_as_many_draws_as_the_study_needs() -> None:
    assert all(FAMILIES[name] >= 32 for name in ("cifar10", "ptb", "nmt"))
    assert all(12 <= FAMILIES[name] <= 16 for name in ("resnet", "inception", "gpt", "bert", "vit", "moe"))
    assert all(FAMILIES[name] == 14 for name in ("ssm", "gnn", "t5", "switch"))
    assert FAMILIES["randwire"] >= 32


def test_an_unknown_family_is_answered_with_the_known_ones() -> None:
    with pytest.raises(FamilyError, match=r"^unknown family 'lstm'; use one of cifar10, ptb, nmt, .*switch$"):
        draw("lstm", 0)
    with pytest.raises(FamilyError, match="seed -1 is negative"):
        draw("ptb", -1)


def test_every_family_has_a_drawer_and_a_name_is_refused_twice() -> None:
    assert set(DRAWERS) == set(FAMILIES)
    with pytest.raises(FamilyError, match="family 'gpt' is registered twice"):
        family("gpt")(gpt.draw)
    with pytest.raises(
        FamilyError, match="family 'mlp': its number of graphs is not known; add it to FAMILIES"
    ):
        family("mlp")


def test_naming_the_families_does_not_import_torch() -> None:
    code = "import sys, graphs.families, graphs.dataset; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_cell_of_cifar10_reads_a_later_node_or_skips_an_input(seed: int) -> None:
    cell = cifar10.draw_cell(np.random.default_rng(seed), 5)
    assert len(cell) == 5
    assert {source for source, _ in cell[0]} == {0, 1}
    assert all(source < 2 + index for index, node in enumerate(cell) for source, _ in node)


def test_a_cifar10_network_halves_the_side_and_doubles_the_channels_per_reduction() -> None:
    cell = cifar10.draw_cell(np.random.default_rng(0), 3)
    network = cifar10.Network(cifar10.Config(cell, cell, (1, 1, 1), channels=4, twice=True))
    assert network(torch.randn(2, 3, SIDE, SIDE)).shape == (2, 16, SIDE // 4, SIDE // 4)


def test_a_cell_of_identities_sums_its_inputs() -> None:
    nodes = (((0, "identity"), (1, "identity")), ((2, "identity"), (2, "identity")))
    cell = cifar10.Cell(nodes, (4, 4), 4, strides=(1, 1), stride=1, twice=False)
    cell.calibrate, cell.project = nn.ModuleList([nn.Identity(), nn.Identity()]), nn.Identity()
    before, last = torch.randn(2, 4, 3, 3), torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(cell(before, last), 2 * (before + last))


@pytest.mark.parametrize("nodes", [2, 3, 4, 12, 40])
@pytest.mark.parametrize("seed", range(6))
def test_a_random_wiring_joins_nodes_to_earlier_ones(nodes: int, seed: int) -> None:
    wiring = randwire.draw_wiring(np.random.default_rng(seed), nodes)
    assert len(wiring) == nodes
    assert all(source < node for node, sources in enumerate(wiring) for source in sources)
    assert wiring == randwire.draw_wiring(np.random.default_rng(seed), nodes)


def test_randwire_draws_every_kind_of_network_and_wirings_of_several_sources() -> None:
    modules = [draw("randwire", seed)[0] for seed in range(FAMILIES["randwire"])]
    kinds = [randwire.WordNetwork, randwire.RecurrentNetwork]
    counts = [sum(isinstance(module, kind) for module in modules) for kind in kinds]
    assert min(*counts, len(modules) - sum(counts)) >= 8
    stages = [part for module in modules for part in module.modules() if isinstance(part, randwire.Stage)]
    assert sum(any(len(sources) > 2 for sources in stage.wiring) for stage in stages) >= 10


def test_a_randomly_wired_stage_sums_what_its_nodes_read_and_averages_what_none_reads() -> None:
    double = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        double.weight.copy_(2 * torch.eye(3))
    stage = randwire.Stage(((), (0,), (0, 1), ()), [double] * 4)
    assert stage.leaves == [2, 3]
    x = torch.randn(2, 3)
    torch.testing.assert_close(stage(x), (2 * (2 * x + 4 * x) + 2 * x) / 2)


def test_a_recurrent_cell_with_closed_gates_keeps_its_state() -> None:
    cell = ptb.RecurrentCell((0, 0, 1), ("tanh", "relu", "sigmoid", "identity"), 3)
    assert cell.leaves == [2, 3]
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        cell.word.weight[:3] = -1e9
    state = torch.randn(2, 3)
    closed_root = cell.word(torch.ones(2, 3))[:, :3]
    assert (closed_root < -1e8).all()
    # The root's gate is shut, so it passes the state on; the others are half open towards f(0).
    node_1, node_2 = state / 2, state + 0.5 * (0.5 - state)
    node_3 = node_1 / 2
    torch.testing.assert_close(cell(torch.ones(2, 3), state), (node_2 + node_3) / 2)


@pytest.mark.parametrize("stepwise", [False, True])
def test_stepwise_and_joint_losses_of_ptb_agree(stepwise: bool) -> None:
    config = ptb.Config((0, 1), ("tanh", "relu", "tanh"), 4, 7, tied=True, stepwise=False)
    model = ptb.LanguageModel(config)
    words = torch.randint(7, (5, 3))
    expected = model(words, words, torch.zeros(3, 4))
    model.stepwise = stepwise
    torch.testing.assert_close(model(words, words, torch.zeros(3, 4)), expected)
    assert model.softmax.weight is model.embedding.weight


def test_the_lstm_cell_is_torchs() -> None:
    ours, theirs = nmt.LstmCell(5, 4), nn.LSTMCell(5, 4)
    with torch.no_grad():
        theirs.weight_ih.copy_(ours.ih.weight)
        theirs.weight_hh.copy_(ours.hh.weight)
        theirs.bias_ih.copy_(ours.ih.bias)
        theirs.bias_hh.zero_()
    x, state = torch.randn(3, 5), (torch.randn(3, 4), torch.randn(3, 4))
    torch.testing.assert_close(ours(x, state), theirs(x, state))


@pytest.mark.parametrize("kind", ["dot", "additive"])
def test_attention_to_equal_words_is_their_value(kind: str) -> None:
    attention = nmt.Attention(kind, 4)
    query, word = torch.randn(3, 4), torch.randn(3, 1, 4)
    once, repeated = (attention(query, memory, memory) for memory in (word, word.expand(3, 6, 4)))
    torch.testing.assert_close(once, repeated)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_nmt_encoder_reads_ahead_only_if_bidirectional(layers: int, bidirectional: bool) -> None:
    config = nmt.Config(layers, 4, 9, "dot", True, bidirectional, residual=True)
    encoder, state = nmt.Encoder(config), (torch.zeros(2, 4), torch.zeros(2, 4))
    words = torch.randn(5, 2, 4)
    changed = words.clone()
    changed[-1] += 1
    first, other = (encoder(steps.unbind(0), state)[:, 0] for steps in (words, changed))
    assert first.shape == (2, 4)
    assert torch.equal(first, other) != bidirectional


@pytest.mark.parametrize("kind", ["basic", "bottleneck", "grouped"])
def test_a_resnet_has_one_block_per_depth_and_a_32nd_of_the_side(kind: str) -> None:
    network = resnet.build(resnet.Config(kind, (1, 2, 1, 1), 32, branches=2, squeeze=True), 7)
    blocks = [module for module in network.modules() if isinstance(module, resnet.Block)]
    assert len(blocks) == 5
    expansion = 1 if kind == "basic" else 4
    assert network.features(torch.randn(2, 3, 64, 64)).shape == (2, 32 * 8 * expansion, 2, 2)


def test_an_inception_block_has_a_branch_per_kind_and_a_pooling_branch() -> None:
    config = inception.Config((((0, 4, 6), (2,)), ((1, 3),)), width=8)
    network = inception.build(config, 7)
    branches = [module for module in network.modules() if isinstance(module, inception.Branches)]
    assert [len(block.branches) for block in branches] == [4, 2, 3, 3]
    assert network.features(torch.randn(2, 3, 64, 64)).shape == (2, 12 * 3, 8, 8)


@pytest.mark.parametrize("causal", [False, True])
def test_fused_and_explicit_attention_agree(causal: bool) -> None:
    x = torch.randn(2, 5, 8)
    attention = transformer.Attention(8, 2, causal=causal, joint=False, fused=False)
    expected = attention(x)
    attention.fused = True
    torch.testing.assert_close(attention(x), expected)


@pytest.mark.parametrize("parallel", [False, True])
def test_gpt_does_not_look_ahead(parallel: bool) -> None:
    model = gpt.LanguageModel(dataclasses.replace(GPT, parallel=parallel))
    words = torch.randint(10, (2, 6))
    changed = words.clone()
    changed[:, 3] += 1
    first, other = model.logits(words), model.logits(changed)
    torch.testing.assert_close(first[:, :3], other[:, :3])
    assert (first[:, 3:] != other[:, 3:]).any(-1).all()


def test_bert_looks_both_ways_and_ties_its_head() -> None:
    config = bert.Config(1, 16, 2, 6, 11, fused=False, dropout=0.0, sentence_head=True)
    model = bert.MaskedWordModel(config)
    assert model.head.weight is model.embedding.word.weight
    words = torch.randint(10, (2, 6))
    changed = words.clone()
    changed[:, -1] += 1
    first, other = (model.blocks(model.embedding(batch)) for batch in (words, changed))
    assert (first[:, 0] != other[:, 0]).any()


def test_vit_sees_one_word_per_patch() -> None:
    network = vit.build(vit.Config(2, 3, 16, 2, 64, 16, joint=True, fused=True), 7)
    assert network.features(torch.randn(2, 3, 64, 64)).shape == (2, 16, 16)


def test_experts_with_room_for_all_mix_by_their_gates() -> None:
    layer = moe.Experts(dataclasses.replace(MOE, capacity=2.0))
    x = torch.randn(2, 6, 16)
    mixed, balance = layer(x)
    best, chosen = torch.softmax(layer.router(x), -1).topk(2)
    weights = best / best.sum(-1, keepdim=True)
    outputs = torch.stack([expert(x) for expert in layer.experts], -2)
    picked = outputs.gather(-2, chosen.unsqueeze(-1).expand(-1, -1, -1, 16))
    torch.testing.assert_close(mixed, (weights.unsqueeze(-1) * picked).sum(-2))
    assert balance.item() >= 0


def test_an_overfull_expert_drops_the_words_that_want_it_least() -> None:
    layer = moe.Experts(dataclasses.replace(MOE, top=1))
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.weight[2] = 1.0
    x = torch.arange(1.0, 13.0).view(2, 6, 1).expand(2, 6, 16) / 12
    mixed, _ = layer(x)
    served = (mixed.flatten(0, 1).abs().sum(-1) > 0).nonzero().flatten()
    assert len(served) == 3


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_a_scan_in_chunks_is_the_recurrence_word_by_word(chunks: int) -> None:
    x, decay = torch.randn(2, 3, 8, 5), -torch.rand(2, 3, 8)
    write, read = torch.randn(2, 1, 8, 4), torch.randn(2, 1, 8, 4)
    state, expected = torch.zeros(2, 3, 4, 5), []
    for time in range(8):
        added = write[:, :, time, :, None] * x[:, :, time, None, :]
        state = decay[:, :, time, None, None].exp() * state + added
        expected.append((read[:, :, time, :, None] * state).sum(-2))
    torch.testing.assert_close(ssm.scan(x, decay, write, read, chunks), torch.stack(expected, 2))


def test_a_selective_scan_does_not_look_ahead() -> None:
    layer = ssm.SelectiveScan(ssm.Config(1, 16, 4, 4, 8, 2, 4, 11, attention_every=0, feed_forward=False))
    x = torch.randn(2, 8, 16)
    changed = x.clone()
    changed[:, 5] += 1
    first, other = layer(x), layer(changed)
    torch.testing.assert_close(first[:, :5], other[:, :5])
    assert (first[:, 5:] != other[:, 5:]).any(-1).all()


def test_ssm_draws_have_attention_between_in_some_and_one_chunk_in_others() -> None:
    modules = [draw("ssm", seed)[0] for seed in range(FAMILIES["ssm"])]
    attends = [
        any(isinstance(part, transformer.Attention) for part in module.modules()) for module in modules
    ]
    assert 1 <= sum(attends) < len(modules)
    scans = [part for module in modules for part in module.modules() if isinstance(part, ssm.SelectiveScan)]
    assert {scan.chunks for scan in scans} == {1, 2, 4, 8}


def _edges() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([0, 1, 1, 3]), torch.tensor([2, 2, 0, 4])


@pytest.mark.parametrize("kind", gnn.KINDS)
def test_a_graph_layer_keeps_to_its_edges_and_permutes_with_the_nodes(kind: str) -> None:
    layer, (source, target), x = gnn.KINDS[kind](8), _edges(), torch.randn(5, 8)
    changed = x.clone()
    changed[1] += 1
    first, other = layer(x, source, target), layer(changed, source, target)
    reached = (first != other).any(1)
    assert reached[[0, 2]].all()
    assert not reached[[3, 4]].any()
    order = torch.tensor([3, 0, 4, 1, 2])
    place = torch.argsort(order)
    torch.testing.assert_close(layer(x[order], place[source], place[target]), first[order])


def test_graph_layers_on_one_hand_made_graph() -> None:
    (source, target), x = _edges(), torch.randn(5, 8)
    sage = gnn.Sage(8)
    torch.testing.assert_close(sage(x, source, target)[2], sage.own(x[2]) + sage.others((x[0] + x[1]) / 2))
    gcn = gnn.Gcn(8)
    expected = gcn.linear(x[0]) / 2**0.5 + gcn.linear(x[1]) / 2**0.5
    torch.testing.assert_close(gcn(x, source, target)[2], expected)
    gat = gnn.Gat(8)
    torch.testing.assert_close(gat(x, source, target)[4], gat.linear(x)[3])
    mixed = gat(x, source, target)[2]
    low, high = torch.minimum(*gat.linear(x)[:2]), torch.maximum(*gat.linear(x)[:2])
    assert ((low <= mixed) & (mixed <= high)).all()


def test_gnn_draws_every_kind_of_layer_and_several_relations() -> None:
    modules = [draw("gnn", seed)[0] for seed in range(FAMILIES["gnn"])]
    layers = [part for module in modules for part in module.modules() if isinstance(part, gnn.Layer)]
    assert {type(layer.relations[0]) for layer in layers} == set(gnn.KINDS.values())
    assert {len(layer.relations) for layer in layers} == {1, 2, 3, 4}


def test_t5_decodes_without_looking_ahead_and_reads_all_of_the_source() -> None:
    model = t5.Translator(T5)
    source, words = torch.randint(10, (2, 7)), torch.randint(10, (2, 5))
    changed = words.clone()
    changed[:, 3] += 1
    first, other = model.logits(source, words), model.logits(source, changed)
    torch.testing.assert_close(first[:, :3], other[:, :3])
    assert (first[:, 3:] != other[:, 3:]).any(-1).all()
    source[:, -1] = 10
    assert (first != model.logits(source, words)).any(-1).all()


def test_t5_tells_near_distances_apart_and_far_ones_roughly() -> None:
    causal = t5.relative_buckets(200, 200, causal=True, device=torch.device("cpu"))
    assert causal[:, 0][[0, 1, 15, 16, 20, 199]].tolist() == [0, 1, 15, 16, 17, 31]
    assert (causal.triu(1) == 0).all()
    both = t5.relative_buckets(200, 200, causal=False, device=torch.device("cpu"))
    assert both[100, [100, 99, 93, 0]].tolist() == [0, 1, 7, 15]
    assert torch.equal(both.tril(-1).T.triu(1), (both - 16).triu(1))


@pytest.mark.parametrize("einsum", [False, True])
@pytest.mark.parametrize("top", [1, 2])
def test_switch_experts_with_room_for_all_mix_by_their_gates(top: int, einsum: bool) -> None:
    layer = switch.SwitchLayer(dataclasses.replace(SWITCH, top=top, capacity=4.0, einsum=einsum))
    x = torch.randn(3, 6, 16)
    mixed, _ = layer(x)
    best, chosen = torch.softmax(layer.router(x), -1).topk(top)
    weights = best / best.sum(-1, keepdim=True) if top > 1 else best
    outputs = torch.stack([expert(x) for expert in layer.experts], -2)
    picked = outputs.gather(-2, chosen.unsqueeze(-1).expand(-1, -1, -1, 16))
    torch.testing.assert_close(mixed, (weights.unsqueeze(-1) * picked).sum(-2))


@pytest.mark.parametrize("einsum", [False, True])
def test_a_full_switch_expert_drops_the_later_words_of_each_sequence(einsum: bool) -> None:
    layer = switch.SwitchLayer(dataclasses.replace(SWITCH, top=1, einsum=einsum))
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.weight[2] = 1.0
    mixed, _ = layer(torch.rand(2, 6, 16) + 0.1)
    assert layer.slots == 3
    assert (mixed.abs().sum(-1) > 0).tolist() == [[True] * 3 + [False] * 3] * 2


def test_joint_switch_experts_are_the_same_products_as_apart() -> None:
    experts = switch.JointExperts(3, 4, 5)
    with torch.no_grad():
        experts.up.normal_()
        experts.down.normal_()
    x = torch.randn(3, 2, 4)
    expected = torch.relu(x[1] @ experts.up[1]) @ experts.down[1]
    torch.testing.assert_close(experts(x)[1], expected)
