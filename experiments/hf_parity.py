"""Decode with every layer on shards, for several numbers of nodes, held against transformers.

    python -m experiments.hf_parity --model=models/smollm2-135m-instruct --nodes=2,3,4,5,6,7,8,12

Cost: for SmolLM2-135M about a minute for each number of nodes on two cores. Expected: every row
within 1e-5 and the text identical; where a token differs, the reference's top two logits are closer
than that.
"""

from fcjax import commands

if __name__ == "__main__":
    commands.run("hf-parity", __doc__)
