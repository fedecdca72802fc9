"""Declares what is asked about searches of pipelines: which clusters, and how large."""

from agent.lab.experiment import EXPERIMENTS, Experiment

EXPERIMENTS.register(
    "pipeline_clusters",
    Experiment(
        "Which pipelines are fastest, on which clusters, and is data parallelism or one device faster?",
        rows=("pipeline_clusters.csv.gz",),
        run="pipeline_clusters:cluster_rows",
        tables="pipeline_clusters:cluster_tables",
        settings={"families": (), "seconds": 1.0, "first_seed": 4000},
        quick={"families": ("unet",), "seconds": 0.02},
    ),
)

EXPERIMENTS.register(
    "pipeline_schedules",
    Experiment(
        "How much shorter is a pipelined step if the order of its actions is searched?",
        rows=("pipeline_schedules.csv.gz",),
        run="pipeline_schedules:schedule_rows",
        tables="pipeline_schedules:schedule_tables",
        settings={"families": (), "seconds": 0.2, "first_seed": 3000},
        quick={"families": ("unet",), "seconds": 0.02},
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
