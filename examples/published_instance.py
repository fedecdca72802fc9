"""Places a published instance: another group's graph on its own cluster, with the best answer that is known.

`evaluate.py --list-graphs` lists all instances. This one is a chain of matrix products on four equal devices,
of Doppler (Yao et al. 2026).

It takes ten seconds, and compiles for a minute when it first runs. It prints step times over the bound, and
saves `runs/examples/published_instance.svg` and the placement, which `evaluate.py --placements` scores, as it
does any placement.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from agent import load_instance, place


def main() -> None:
    """Places the instance and compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--instance", default="doppler:chain_mm", help="name of the instance")
    parser.add_argument("--seconds", type=float, default=5.0, help="limit of the search")
    parser.add_argument("--out", type=Path, default=Path("runs/examples"))
    flags = parser.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    picture = flags.out / "published_instance.svg"

    instance = load_instance(flags.instance)
    settings = {"cluster": instance.cluster, "pipeline": instance.pipeline, "seconds": flags.seconds}
    plan, best = place(instance.graph, placer="refine", **settings), instance.best_known
    plan.save(picture.with_suffix(".json"))
    plan.plot(picture)

    print(f"{instance.name}: {instance.source.title}, {instance.source.licence}")
    steps = {"one device": plan.single_s, plan.placer: plan.step_time.total_s}
    steps |= {f"best known, by {best.method}": best.step_time_s, "lower bound": instance.bound_s}
    for name, seconds in steps.items():
        print(f"{name:<30} {1e3 * seconds:>9.4g} ms {seconds / instance.bound_s:>8.3f} of the bound")
    print(f"saved {picture}")


if __name__ == "__main__":
    main()
