"""Runs a planner of eth-easl/sailor, or its simulator; needs the environment of that repository, not ours.

    python field_planners.py SAILOR plan MODEL KIND:GPUS,KIND:GPUS PLANNER SECONDS OUT.json
    python field_planners.py SAILOR judge MODEL PLANS.json OUT.json

SAILOR is the folder that has the repository as `sailor`. SECONDS is the time limit of Metis.
A plan has a micro batch and pipelines of stages (first layer, end layer, replicas); replicas are runs of
(kinds of the nodes, tensor-parallel GPUs, number).
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import resource
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ZONE, NODE = "us-central1-a", 4
CONFIGS = {"OPT-350": "training_config_opt_350.json", "GPT-Neo-2.7": "training_config_gpt_neo27.json"}
FIRST_KIND_ONLY = {"Piper": "profile.json", "Varuna": f"profile_{NODE}.json", "Galvatron": ""}
"""Planners of equal GPUs, which Sailor's script gives the first kind alone, and their profiles."""


class Field:
    """Planners and the simulator of the repository, for one model."""

    def __init__(self, root: Path, model: str) -> None:
        os.environ["SAILOR_PATH"] = str(root)
        sys.path.insert(0, str(root / "sailor"))
        self.home = root / "sailor/sailor/Planner"
        self.model, self.config_path = model, self.home / "simulations/configs" / CONFIGS[model]
        self.config = json.loads(self.config_path.read_text())
        self.sizes = json.loads((self.home / "llm_info.json").read_text())
        self.module = import_module("sailor.Planner.simulations.runtime_simulator")
        profiles = json.loads((self.home / "simulations/profiles_tmp.json").read_text())
        self.simulator = self.module.Simulator(str(root), self.config, self.sizes, False, profiles, zone=ZONE)

    def planner(self, name: str, kind: str, seconds: float) -> Any:
        """Makes a planner."""
        own, config = self.home / "baselines" / name, str(self.config_path)
        if name == "SAILOR":
            make = import_module("sailor.Planner.sailor_planner.cpp_src.planner").SailorPlanner
            ours = self.home / "sailor_planner"
            quotas = str(ours / "dummy_quotas_dict.json")
            return make(f"{ours}/profiles/{self.model}/", config, quotas, "throughput", False)
        module: Any = import_module(f"sailor.Planner.baselines.{name}.{name.lower()}_planner")
        make = getattr(module, f"{name}Planner")
        if name in FIRST_KIND_ONLY:
            file = own / "profiles" / self.model / kind / FIRST_KIND_ONLY[name]
            if name == "Galvatron":
                return make(config, str(file), "throughput")
            return make(str(file)) if name == "Piper" else make(str(file), "throughput")
        if name == "DTFM":
            return make(str(self.home / "simulations/profiles_tmp.json"), config, self.sizes, False)
        if name == "FlashFlex":
            return make(str(own / "src/machine_amounts.json"))
        if name == "Metis":
            module.TIME_BUDGET_SEC = seconds
            return make(str(own / "profiles" / self.model), config)
        return make(str(own / "profiles" / self.model), "throughput")

    def cluster(self, name: str, counts: dict[str, int]) -> dict[str, Any]:
        """Describes a cluster to a planner as Sailor's script does."""
        basic = json.loads((self.home / "simulations/configs/basic_cluster_config.json").read_text())
        by_zone: dict[str, Any] = {f"{kind}_{ZONE}": n for kind, n in counts.items()}
        if name == "SAILOR":
            return {**by_zone, "max_cost": 0.0, "min_throughput": 0.0}
        if name == "DTFM":
            return {**by_zone, "gpu_types": [*counts], "gpus_per_node": dict.fromkeys(counts, NODE)}
        nodes: dict[str, Any] = {
            kind: {"num_nodes": n // NODE, "gpus_per_node": NODE, "mem_per_gpu": basic[kind]["mem_per_gpu"]}
            for kind, n in counts.items()
        }
        if name in FIRST_KIND_ONLY:
            kind = next(iter(counts))
            return {"gpu_type": kind, **nodes[kind], "zone": ZONE}
        return {**nodes, "zone": ZONE}

    def compact(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Converts a plan of a planner."""
        if "pipeline_list" not in plan:
            parts = self.module.partition_uniform(self.config["num_all_layers"], plan["P"], verbose=True)
            runs = [[[plan["gpu_type"]], plan["T"], plan["D"]]]
            stages = [[part[0], part[-1] + 1, runs] for part in parts]
            return {"micro": int(plan["mbs"]), "pipelines": [stages]}
        pipelines = []
        for pipeline in plan["pipeline_list"]:
            stages = []
            for layers, replicas in zip(pipeline["layers_per_stage"], pipeline["tmp_per_stage"], strict=True):
                runs = []
                for nodes, gpus in replicas:
                    kinds = [node[0] for node in nodes]
                    if runs and runs[-1][:2] == [kinds, gpus]:
                        runs[-1][2] += 1
                    else:
                        runs.append([kinds, int(gpus), 1])
                stages.append([int(min(layers)), int(max(layers)) + 1, runs])
            pipelines.append(stages)
        return {"micro": int(plan["mbs"]), "pipelines": pipelines}

    def judge(self, plan: dict[str, Any]) -> tuple[bool, float | None]:
        """Says whether Sailor's check finds the memory for a plan, and its seconds; None without profiles."""
        pipelines = []
        for stages in plan["pipelines"]:
            replicas = [
                [([(kind, NODE, ZONE) for kind in kinds], gpus) for kinds, gpus, n in runs for _ in range(n)]
                for _, _, runs in stages
            ]
            layers = [list(range(first, end)) for first, end, _ in stages]
            own = {"num_stages": len(stages), "layers_per_stage": layers, "tmp_per_stage": replicas}
            pipelines.append({**own, "dp": [len(each) for each in replicas]})
        full = {"mbs": plan["micro"], "pipeline_list": pipelines}
        with contextlib.redirect_stdout(io.StringIO()):
            fits = bool(self.simulator.check_config_fits(full))
            try:
                return fits, float(self.simulator.simulate_iteration_time(full)[0])
            except KeyError:
                return fits, None

    def plan(self, name: str, counts: dict[str, int], seconds: float) -> dict[str, Any]:
        """Plans; takes the first plan of the list that fits Sailor's check, as Sailor's script does."""
        planner = self.planner(name, next(iter(counts)), seconds)
        began = processor_s()
        config = copy.deepcopy(self.config)
        plans = planner.get_sorted_plans(cluster_config=self.cluster(name, counts), training_config=config)
        spent = processor_s() - began
        for skipped, plan in enumerate(map(self.compact, plans)):
            fits, found = self.judge(plan)
            if fits and found is not None:
                return {"cpu_s": spent, "skipped": skipped, "plans": [{"plan": plan}]}
        return {"cpu_s": spent, "skipped": len(plans), "plans": []}


def processor_s() -> float:
    """Processor seconds of this process and of those that it waited for."""
    uses = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


def main() -> None:
    """Plans, or judges plans."""
    root, mode, model, *words = sys.argv[1:]
    field = Field(Path(root), model)
    if mode == "judge":
        plans = json.loads(Path(words[0]).read_text())
        Path(words[1]).write_text(json.dumps([field.judge(plan) for plan in plans]))
        return
    cluster, name, seconds, out = words
    counts = {kind: int(n) for kind, n in (each.split(":") for each in cluster.split(","))}
    with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink):
        try:
            found = field.plan(name, counts, float(seconds))
        except (ArithmeticError, AssertionError, LookupError, OSError, TypeError, ValueError) as error:
            found = {"error": f"{type(error).__name__}: {error}", "plans": []}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
