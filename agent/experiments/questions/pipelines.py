"""Declares what is asked about pipelines."""

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
    "pipeline_clusters",
    Experiment(
        "Which pipelines are fastest, on which clusters, and is data parallelism or one device faster?",
        rows=("pipeline_clusters.csv.gz",),
        run="pipeline_clusters:cluster_rows",
        tables="pipeline_clusters:cluster_tables",
        settings={"families": (), "seconds": 0.4, "first_seed": 4000},
        quick={"families": ("unet",), "seconds": 0.02},
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

EXPERIMENTS.register(
    "pipeline_scale",
    Experiment(
        "How long does a pipeline of 50,000 ops on 64 devices take to plan?",
        rows=("pipeline_scale.csv",),
        run="pipeline_scale:scale_rows",
        tables="pipeline_scale:scale_tables",
        settings={"graphs": ("seq2seq",), "seconds": 20.0},
        quick={"graphs": ("gpt2_xl",), "seconds": 1.0},
    ),
)
