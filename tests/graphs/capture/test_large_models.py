"""The large models: their published sizes, and known answers of LLaMA's building blocks."""

from __future__ import annotations

import pytest
import torch

from graphs.families import large, layers, text


@pytest.mark.parametrize(("model", "parameters"), [("gpt2_xl", 1_557_611_200), ("llama_7b", 6_738_415_616)])
def test_a_published_model_has_its_published_number_of_parameters(model: str, parameters: int) -> None:
    module, inputs = getattr(large, model)()
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    assert all(tensor.is_meta for tensor in (*module.parameters(), *inputs))


def test_the_sequence_model_has_eight_layers_each_way() -> None:
    module, (source, *_) = large.seq2seq()
    assert (len(module.encoder.cells), len(module.decoder.cells), len(source)) == (8, 8, 78)


def test_rms_norm_divides_by_the_root_mean_square() -> None:
    normed = layers.RMSNorm(2)(torch.tensor([[3.0, 4.0]]))
    assert normed.tolist()[0] == pytest.approx([3.0 / 12.5**0.5, 4.0 / 12.5**0.5])


def test_a_turned_product_depends_on_the_distance_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(8), torch.randn(8)
    speed = text.ROTARY_BASE ** (-torch.arange(4) / 4)

    def turned(x: torch.Tensor, position: int) -> torch.Tensor:
        angle = (position * speed).repeat(2)
        return x * angle.cos() + text._half_turned(x) * angle.sin()

    near = turned(query, 5) @ turned(key, 2)
    assert near.item() == pytest.approx((turned(query, 25) @ turned(key, 22)).item(), rel=1e-4)
    assert near.item() != pytest.approx((turned(query, 5) @ turned(key, 3)).item(), rel=1e-2)


def test_a_word_does_not_see_later_ones() -> None:
    torch.manual_seed(0)
    model = text.Llama(layers=2, width=16, inner=24, heads=2, vocabulary=11)
    words = torch.randint(11, (1, 6))
    changed = words.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 11
    logits, others = model.logits(words), model.logits(changed)
    assert torch.allclose(logits[:, :-1], others[:, :-1], atol=1e-6)
    assert not torch.allclose(logits[:, -1], others[:, -1])
