"""Placers on problems whose optimum is known."""
