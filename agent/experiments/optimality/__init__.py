"""How far from optimal placers are on problems whose optimum is known."""
