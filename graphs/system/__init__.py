"""Modules that know nothing of graphs: errors, files, settings, processes."""
