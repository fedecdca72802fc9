"""Settings for the whole test suite."""

from hypothesis import settings

# Examples are the same in every run, and a busy machine fails no test.
settings.register_profile("placewalk", deadline=None, derandomize=True, database=None)
settings.load_profile("placewalk")
