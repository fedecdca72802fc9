"""Large-neighbourhood search: neighbourhoods and moves that networks choose, against choices without."""
