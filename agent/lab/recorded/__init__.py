"""The tables of settled questions, from rows that are not made again; pages name their code."""
