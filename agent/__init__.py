"""Placers and the policy: `from agent import place` places a model in one call."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.plan import Plan, place

__all__ = ["Plan", "place"]


def __getattr__(name: str) -> object:
    """Load the front door at its first use, so that `import agent` loads nothing."""
    if name in __all__:
        import agent.plan

        return getattr(agent.plan, name)
    raise AttributeError(f"module 'agent' has no attribute '{name}'; it has {', '.join(__all__)}")
