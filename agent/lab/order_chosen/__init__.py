"""A learned order: a policy that also chooses the unit it decides next; the page `order` has the answers."""
