"""What a step costs beside its peers, all of them timed in this one run.

    python -m experiments.benchmark --model=models/qwen2.5-1.5b-random

Cost at 1.5B: 20 GB of memory (three copies of the weights at a time) and about fifteen minutes. The
packaged tiny model takes seconds but says nothing about speed, since it fits in the cache. Expected
at 1.5B on two cores: a layer on shards within 1.15 x the unsharded one; the decode with every layer
on shards within 1.11 x the unsharded reference and faster than transformers on torch in f32; the
bytes that the programs move are those of the plan's formula; recording takes at most 10 % of a
step.
"""

from fcjax import commands

if __name__ == "__main__":
    commands.run("benchmark", __doc__)
