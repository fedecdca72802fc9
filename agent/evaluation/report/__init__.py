"""The report of an evaluation: `report.html`, one self-contained file."""
