"""Plans a pipeline on two unequal GPUs, and trains by one in two processes of this machine.

The cluster is one of one's own: a 24 GB RTX 3090 and an 8 GB RTX 2080. The model, with gradients and Adam's
state, fits on neither. `place` cuts it where the stages take equally long within their memory, and `export`
says the cut in the words of `torch.distributed.pipelining`. A narrow twin of the model is placed alike;
`compile` trains it with that library, here on two CPU devices.

It takes 40 seconds, and compiles for a minute when it first runs. It prints the stages, the export and
the losses of the pipeline and of the plain module, which are equal. It saves
`runs/examples/pipeline_on_unequal_gpus.svg`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from agent import place
from envs.cluster.files import cluster_from_json

KEYS = ("name", "kind", "memory_bytes", "flops_per_s", "bytes_per_s", "launch_s")
LARGE = ("large", "rtx3090", 24e9, 35.6e12, 936e9, 5e-6)
SMALL = ("small", "rtx2080", 8e9, 10.1e12, 448e9, 5e-6)
CLUSTER = {
    "format": "placewalk.cluster/1",
    "name": "desk",
    "devices": [dict(zip(KEYS, gpu, strict=True)) for gpu in (LARGE, SMALL)],
    "links": {"bytes_per_s": 12e9, "latency_s": 1e-5, "sharing": "pair"},
}
"""The contents of a cluster file; `place(..., cluster=read_cluster("desk.json"))` reads one."""
LEARNING_RATE = 1e-3


def make(width: int, samples: int, device: str) -> tuple[nn.Module, Tensor]:
    """Makes a model of 24 layers and a batch."""
    with torch.device(device):
        layers = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()) for _ in range(24)]
        return nn.Sequential(*layers), torch.randn(samples, width)


def main() -> None:
    """Plans, exports, draws and trains."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=5, help="training steps of the twin")
    parser.add_argument("--seconds", type=float, default=3.0, help="limit of each search")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"))
    flags = parser.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    picture = flags.out / "pipeline_on_unequal_gpus.svg"
    cluster = cluster_from_json(CLUSTER, "CLUSTER")
    settings = {"cluster": cluster, "pipeline": "1f1b", "split": 8, "seconds": flags.seconds}

    plan = place(*make(8192, 4096, "meta"), **settings)
    print(plan.explain())
    print("split-spec:", plan.export("split-spec"))
    plan.plot(picture)

    torch.manual_seed(0)
    twin, batch = make(64, 128, "cpu")
    with place(twin, batch, **settings).compile(twin, devices=["cpu", "cpu"], lr=LEARNING_RATE) as runner:
        losses = [float(runner.step(batch)) for _ in range(flags.steps)]
    optimizer = torch.optim.Adam(twin.parameters(), lr=LEARNING_RATE)
    for loss in losses:
        plain = twin(batch).mean()
        print(f"loss of the pipeline {loss:.6f}, of the module {plain.item():.6f}")
        optimizer.zero_grad()
        plain.backward()
        optimizer.step()
    print(f"saved {picture}")


if __name__ == "__main__":
    main()
