"""Other people's schedulers and an independent exact solver on problems of this project."""
