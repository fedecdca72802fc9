"""The lab: the questions of the pages of results, the runs that make rows, and the tables of rows."""
