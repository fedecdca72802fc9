"""Declares what is asked about pipelines."""

from agent.lab.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "pipeline_profiles",
    Experiment(
        "Which placer splits published profiles into the fastest pipelines?",
        rows=("pipeline_profiles.csv.gz",),
        run="pipeline_profiles:profile_rows",
        tables="pipeline_profiles:profile_tables",
        settings={"graphs": (), "evaluations": 1_000},
        quick={"graphs": ("pipedream_gnmt", "pipedream_alexnet"), "evaluations": 100},
    ),
)

EXPERIMENTS.register(
    "pipeline_published",
    Experiment(
        "How wrong are simulated pipelines that others measured?",
        rows=("pipeline_published.csv.gz",),
        run="pipeline_published:published_rows",
        tables="pipeline_published:published_tables",
        settings={"every": 1},
        quick={"every": 30},
    ),
)

EXPERIMENTS.register(
    "pipeline_measured",
    Experiment(
        "How far are simulated pipelines from pipelines that run on two processor cores?",
        rows=("pipeline_measured.csv.gz",),
        run="pipeline_measured:measured_rows",
        tables="pipeline_measured:measured_tables",
        settings={"graphs": (), "rounds": 8},
        quick={"graphs": ("resnet",), "rounds": 1},
    ),
)
