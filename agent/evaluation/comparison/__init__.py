"""Placers compared over trials: ratios, intervals, summaries."""
