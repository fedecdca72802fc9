"""What knows nothing of graphs: errors, files, settings, processes."""
