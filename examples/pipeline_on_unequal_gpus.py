"""Plans a pipeline on two unequal GPUs, and trains the stages of one in two processes of this machine.

`CLUSTER` is what a cluster file holds. The model fits on neither GPU; `place` cuts it into stages that do.
`export` says the cut for `torch.distributed.pipelining`. Two processes, as of torchrun, train a narrow twin.
It takes 40 seconds, after a minute of compiling, and prints losses that equal those of the module.
"""

import argparse
import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing import spawn

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
SETTINGS = {"cluster": cluster_from_json(CLUSTER, "CLUSTER"), "pipeline": "1f1b", "split": 8}


def make(width: int, samples: int, device: str) -> tuple[nn.Module, Tensor]:
    """Makes a model of 24 layers and a batch."""
    with torch.device(device):
        layers = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()) for _ in range(24)]
        return nn.Sequential(*layers), torch.randn(samples, width)


def train(rank: int, store: str, n_steps: int) -> None:
    """Trains the stage of a rank, and the plain module; the rank of the last stage prints both losses."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    twin, batch = make(64, 128, "cpu")
    plain = copy.deepcopy(twin)
    stages = place(twin, batch, **SETTINGS, placer="equal-time").pipeline_stages(twin)
    optimizer = torch.optim.Adam([*stages.parameters(), *plain.parameters()])
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = plain(batch).mean()
        loss.backward()
        losses = stages.step(batch)
        optimizer.step()
        if losses is not None:
            print(f"loss of the pipeline {losses.mean():.6f}, of the module {loss:.6f}")
    dist.destroy_process_group()


def main() -> None:
    """Plans, exports, draws and trains."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=5, help="training steps of the twin")
    parser.add_argument("--seconds", type=float, default=3.0, help="limit of each search")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"))
    flags = parser.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    plan = place(*make(8192, 4096, "meta"), **SETTINGS, seconds=flags.seconds)
    print(plan.explain(), f"split-spec: {plan.export('split-spec')}", sep="\n")
    plan.plot(flags.out / "pipeline_on_unequal_gpus.svg")
    with TemporaryDirectory() as folder:
        spawn(train, (str(Path(folder) / "store"), flags.steps), nprocs=2)
    print(f"saved {flags.out / 'pipeline_on_unequal_gpus.svg'}")


if __name__ == "__main__":
    main()
