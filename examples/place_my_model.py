"""Places a model of one's own on four GPUs, and draws the step before and after.

The model reads pictures and texts with two towers, as CLIP does, and does not fit on one 16 GB GPU. Before,
`memory-fill` fills one GPU after the other, as `device_map="auto"` of accelerate does. After, `place` has
searched. The model is on the meta device, where its weights take no memory.

It takes half a minute, and compiles for another one when it first runs. It prints both step times, and saves
`runs/examples/place_my_model.svg` and the placement, which `evaluate.py --placements` reads.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn
from torch.nn import functional as F

from agent import place
from envs.figures import PAPER, draw_timeline


class Towers(nn.Module):
    """Two transformers, whose outputs for a picture and its text should be alike."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words, self.patches = nn.Embedding(49_408, width), nn.Linear(3 * 16 * 16, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True)
        self.text = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pictures = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, words: Tensor, patches: Tensor) -> Tensor:
        """Computes the contrastive loss of a batch."""
        text = F.normalize(self.text(self.words(words)).mean(dim=1), dim=-1)
        pictures = F.normalize(self.pictures(self.patches(patches)).mean(dim=1), dim=-1)
        return F.cross_entropy(text @ pictures.T / 0.07, torch.arange(len(text), device=text.device))


def main() -> None:
    """Places the model and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=12, help="layers of each tower")
    parser.add_argument("--seconds", type=float, default=5.0, help="limit of the search")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"))
    flags = parser.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    picture = flags.out / "place_my_model.svg"

    with torch.device("meta"):
        model = Towers(width=2048, layers=flags.layers)
        inputs = torch.zeros(32, 77, dtype=torch.long), torch.randn(32, 196, 3 * 16 * 16)
    after = place(model, inputs, cluster="4xv100-sxm2", seconds=flags.seconds)
    before = place(after.graph, cluster=after.cluster, placer="memory-fill")
    after.save(picture.with_suffix(".json"))
    print(after)

    figure, axes = plt.subplots(2, figsize=(10, 5), layout="constrained")
    before_s, after_s = before.step_time.total_s, after.step_time.total_s
    for axis, plan in zip(axes, (before, after), strict=True):
        draw_timeline(axis, plan.objective, plan.placement, plan.step_time, max(before_s, after_s), PAPER)
        axis.set_title(f"{plan.placer}: {1e3 * plan.step_time.total_s:.0f} ms", loc="left")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(picture)
    print(f"before: {before_s:.3f} s, after: {after_s:.3f} s")
    print(f"saved {picture}")


if __name__ == "__main__":
    main()
