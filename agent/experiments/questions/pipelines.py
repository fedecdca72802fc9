"""Declares what is asked about placers of pipelines."""

from agent.experiments.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "pipeline_policy",
    Experiment(
        "Does a policy place pipelines better than search?",
        rows=("pipeline_policy.csv.gz",),
        run="pipeline_policy:pipeline_rows",
        tables="recorded.placers:pipeline_policy_tables",
        settings={
            "policy": "runs/pipelines",
            "families": ("llama", "moe", "ssm", "t5", "nmt"),
            "every": 5,
            "clusters": 2,
            "seconds": (0.05, 0.3),
        },
    ),
)
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
