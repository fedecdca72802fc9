"""Few measurements: searches that correct their costs, against others."""
