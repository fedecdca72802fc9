"""Declares what is asked about placers of pipelines."""

from agent.experiments.experiment import EXPERIMENTS, Experiment

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
