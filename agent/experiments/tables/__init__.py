"""Tables of the pages of results, printed from the rows beside the pages."""
