"""Declares what is asked about inference."""

from agent.experiments.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "inference_splits",
    Experiment(
        "What do splits of language models by bytes or by speed lose in tokens a second?",
        rows=("inference_splits.csv.gz",),
        run="inference_splits:split_rows",
        tables="inference_splits:split_tables",
        settings={"graphs": (), "evaluations": 10_000},
        quick={"graphs": ("llama_8b",), "evaluations": 100},
    ),
)
