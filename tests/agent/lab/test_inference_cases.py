"""Language models of public configurations."""

from __future__ import annotations

import pytest

from agent.lab.inference_cases import llama_8b, llama_70b, mixtral_8x7b, qwen_30b_a3b, qwen_32b


def test_models_have_the_sizes_that_they_are_published_with() -> None:
    models = (llama_8b, qwen_32b, llama_70b, mixtral_8x7b, qwen_30b_a3b)
    billions = [sum(each.numel() for each in make()[0].parameters()) / 1e9 for make in models]
    assert billions == pytest.approx([8.03, 32.76, 70.55, 46.70, 30.53], abs=0.01)
