"""Corrections of the costs of a simulator by measured steps, and what to measure next."""
