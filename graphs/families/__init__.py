"""Model families: each draws a plain `nn.Module` on the meta device, and example inputs, from a seed."""

from graphs.families.registry import FAMILIES, FamilyError, draw, family

__all__ = ["FAMILIES", "FamilyError", "draw", "family"]
