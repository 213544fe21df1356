"""
Which n and m to use: predict the seconds and the learning signal of a grid of pairs from measured runs.

```python
from trl_pods.planning import plan_runs

plan = plan_runs(["runs/small", "runs/large"], rollouts=[8, 32, 128], kept=[4, 16])
print(plan.best, plan.signal_per_second)
```

Letters: P prompts per generation batch, n rollouts sampled per prompt, m rollouts kept per prompt.
"""

from .plan import Pair, Plan, plan_runs
from .ranks import rank_correlation

__all__ = ["Pair", "Plan", "plan_runs", "rank_correlation"]
