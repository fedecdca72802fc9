"""Former names of modules of `agent.learn`, which scripts written for 0.2.0 import."""

import sys
import warnings

from agent import learn
from agent.learn import actor_critic, config, evaluation, ppo

warnings.warn("agent.training is agent.learn now; import from there", DeprecationWarning, stacklevel=2)
FORMER = {
    "config": config,
    "reinforcement": learn,
    "reinforcement.actor_critic": actor_critic,
    "reinforcement.callbacks": evaluation,
    "reinforcement.ppo": ppo,
}
sys.modules |= {f"{__name__}.{name}": module for name, module in FORMER.items()}
