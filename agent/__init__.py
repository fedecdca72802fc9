"""Placers and the policy: `from agent import place` places a model in one call."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.instances.instance import list_instances, load_instance
    from agent.placing.fits import fits
    from agent.placing.place import place
    from agent.placing.plan import PipelinePlan, Plan
    from envs.pipeline.pipeline import Pipeline

for _name in ("envs", "graphs"):
    _file = getattr(find_spec(_name), "origin", None)
    if _file and Path(_file).resolve().parents[1] != Path(__file__).resolve().parents[1]:
        raise ImportError(f"{_file} hides Placewalk's package '{_name}'; rename it")

__all__ = ["Pipeline", "PipelinePlan", "Plan", "fits", "list_instances", "load_instance", "place"]

_HOMES = {
    "Pipeline": "envs.pipeline.pipeline",
    "fits": "agent.placing.fits",
    "list_instances": "agent.instances.instance",
    "load_instance": "agent.instances.instance",
}


def __getattr__(name: str) -> object:
    """Loads the front door at its first use, so that `import agent` loads nothing."""
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "agent.placing.place")), name)
    raise AttributeError(f"module 'agent' has no attribute '{name}'; it has {', '.join(__all__)}")
