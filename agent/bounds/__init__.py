"""Lower bounds on the step time of every feasible placement of a problem."""
