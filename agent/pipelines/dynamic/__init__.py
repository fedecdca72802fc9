"""Dynamic programmes that split a graph into stages whose greatest load is least."""
