"""Text from a model whose state stays cut over the nodes from the embedding to the chosen token.

    python -m experiments.generate --prompt="ROMEO:" --max_new_tokens=40
    python -m experiments.generate --model=models/smollm2-135m-instruct --nodes=3 --interactive

Cost: ten seconds on two cores, half a minute and 2 GB for SmolLM2-135M; JAX compiles most of it.
Expected: `audit` lines that say "clean", then the text.
"""

from fcjax import commands

if __name__ == "__main__":
    commands.run("generate", __doc__)
