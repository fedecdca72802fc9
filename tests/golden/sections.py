"""The sections of the goldens: each yields names of cases and the answers of today."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from graphs.orders import ORDERS
from tests.golden import adapters

SMALL_GRAPHS = (
    ("cifar10", 23, "op"),
    ("ptb", 29, "module"),
    ("resnet", 1, "module"),
    ("inception", 9, "op"),
    ("gpt", 10, "op"),
    ("bert", 5, "block"),
    ("vit", 12, "module"),
    ("moe", 4, "module"),
    ("randwire", 42, "op"),
    ("ssm", 4, "block"),
    ("gnn", 9, "op"),
    ("switch", 3, "module"),
)
"""Family, number and granularity of twelve graphs."""
LARGER_GRAPHS = tuple((family, 0, "layer") for family, *_ in SMALL_GRAPHS[:8])
CLUSTERS = ("4xv100", "gpu+cpu", "placeto-k80:3", "tight a100+v100")
CLOCK = ("wall_s", "cpu_s", "ratio_to_refine")
"""Columns of tables that the clock decides."""
CURVES = ("train/policy_gradient_loss", "train/value_loss", "train/entropy_loss", "to_device/score")
SOME, TRAINED = "~", "~~"
"""Begin answers that depend on the kind of processor, by the sums of its matrix products; and those of
trainings, where the first steps of Adam amplify such differences."""
Answers = Iterator[tuple[str, str]]


def answer(kind: str, bits: list[Any], *numbers: float) -> str:
    """Formats an answer: a hash of arrays, texts and numbers, and some numbers in full."""
    hashed = hashlib.sha256()
    for value in bits:
        hashed.update(np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else b"")
        hashed.update(b"" if isinstance(value, np.ndarray) else repr(value).encode())
    return " ".join([kind + hashed.hexdigest()[:10], *(float(number).hex() for number in numbers)])


def placements(n_clusters: int = len(CLUSTERS)) -> Answers:
    """Every placer of steps, on 12 graphs and up to 4 clusters, with two seeds where it draws."""
    for at, case in enumerate(SMALL_GRAPHS):
        graph, order = adapters.graph_of(*case), list(ORDERS)[at % len(ORDERS)]
        for cluster in (CLUSTERS[(at + n) % len(CLUSTERS)] for n in range(n_clusters)):
            problem = adapters.problem_of(graph, cluster)
            for name in adapters.STEP_PLACERS:
                is_learned = name.startswith("policy") or name == "auto"
                kind, evaluations = (SOME, 12) if is_learned else ("", 100)
                for seed in range(1 + adapters.is_random(name, order)):
                    device_of, total_s = adapters.place(name, problem, order, evaluations, seed)
                    yield f"{graph.name} {cluster} {name} {seed}", answer(kind, [device_of], total_s)


def pipelines() -> Answers:
    """Every placer of pipelines, on 3 graphs, 2 clusters and all schedules."""
    for case in SMALL_GRAPHS[4:10:2]:
        graph = adapters.graph_of(*case)
        for cluster in ("4xv100", "pair 3090+2080+titan", "tight pair 3090+2080+titan"):
            problem = adapters.problem_of(graph, cluster)
            for schedule in ("gpipe", "1f1b", "interleaved-1f1b:2", "zero-bubble"):
                for name in adapters.PIPELINED_PLACERS:
                    for seed in range(1 + adapters.pipeline_is_random(name)):
                        plan, total_s = adapters.place_pipeline(name, problem, schedule, 6, 200, seed)
                        yield (f"{graph.name} {cluster} {schedule} {name} {seed}", answer("", plan, total_s))


def environment() -> Answers:
    """64 episodes: both processes and masks, two penalties, all orders, four problems."""
    cases = [*SMALL_GRAPHS[:1], *SMALL_GRAPHS[8:9], *SMALL_GRAPHS[4:5], *SMALL_GRAPHS[4:5]]
    clusters = ("4xv100", "placeto-k80:3", "tight a100+v100", "gpu+cpu")
    problems = [
        adapters.problem_of(adapters.graph_of(*case), cluster)
        for case, cluster in zip(cases, clusters, strict=True)
    ]
    settings = [
        {"mdp": mdp, "mask": mask, "memory_penalty": penalty}
        for mdp in ("construct", "improve")
        for mask in ("memory", "none")
        for penalty in (1.0, 2.5)
    ]
    for batch, setting in enumerate(settings):
        numbers = range(8 * batch, 8 * batch + 8)
        episodes = [((3 * at + at // 10) % 4, list(ORDERS)[at % len(ORDERS)]) for at in numbers]
        played = adapters.play(problems, episodes, **setting)
        for (problem, order), episode in zip(episodes, played, strict=True):
            rows = [each[name] for each in episode.observations for name in sorted(each)]
            bits = [*rows, np.float32(episode.rewards), *episode.info]
            where = f"{' '.join(map(str, setting.values()))} {problem} {order}"
            yield where, answer("", bits, episode.step_time_s, episode.episode_return)


def training() -> Answers:
    """Weights and curves of three updates, in both processes."""
    graphs = [adapters.graph_of(*SMALL_GRAPHS[at]) for at in (5, 9, 2, 7)]
    for mdp in ("construct", "improve"):
        for number, (weights, metrics) in enumerate(adapters.updates(mdp, graphs)):
            curves = [metrics[name] for name in CURVES]
            yield f"{mdp} {number}", answer(TRAINED, weights, *curves)


def logits() -> Answers:
    """Logits and values of the shipped policy, on 20 graphs."""
    for case in (*SMALL_GRAPHS, *LARGER_GRAPHS):
        graph = adapters.graph_of(*case)
        problem = adapters.problem_of(graph, "4xv100")
        (episode,) = adapters.play([problem], [(0, "topo")], mdp="construct")
        found = adapters.scores(problem, episode.observations[:32])
        usable = np.stack([each["mask"] for each in episode.observations[:32]]) > 0
        numbers = [found[0][usable].mean(), found[0][usable].std(), found[1].mean()]
        yield f"{graph.name} {case[2]}", answer(SOME, found, *numbers)


def evaluation() -> Answers:
    """Rows and files that `evaluate.py` writes for a model, as a step and as a pipeline."""
    words = {
        "step": "--cluster 4xv100 gpu+cpu --placers single heft annealing policy --orders topo bfs --seeds 2 "
        "--budget 40 --trace --export accelerate megatron deepspeed vllm",
        "pipeline": "--cluster 4xv100 --pipeline 1f1b --microbatches 4 --placers single equal-time refine "
        "data-parallel --budget 40 --seeds 1 --trace --export split-spec schedule-csv",
    }
    for name, flags in words.items():
        for path, content in adapters.evaluation_files(flags.split()):
            kind = SOME if "/policy." in path else ""
            if path.endswith(".gz"):
                content = gzip.decompress(content)
            if path in ("results.csv", "summary.csv"):
                for row in csv.DictReader(io.StringIO(content.decode())):
                    cells = [text for column, text in row.items() if column not in CLOCK]
                    kind = SOME if row["placer"] == "policy" else ""
                    where = " ".join(row.get(key, "") for key in ("cluster", "placer", "order", "seed"))
                    yield f"{name} {path} {where}", answer(kind, cells, float(row["step_time_s"]))
            elif path == "report.html":
                varied = r"<td>[^<]*</td>|<svg.*?</svg>|<p class=.note.><time>.*?</p>\n"
                text = re.sub(varied, "", content.decode(), flags=re.DOTALL)
                yield f"{name} {path}", answer(SOME, [text])
            elif path not in (".lock", "journal.jsonl"):
                yield f"{name} {path}", answer(kind, [content])


def tables() -> Answers:
    """Tables of the pages of results."""
    for name, text in adapters.printed_tables():
        yield name, answer("", [text])


SECTIONS = (placements, pipelines, environment, training, logits, evaluation, tables)
