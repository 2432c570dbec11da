"""One decode layer on sharded state, or several, or all of them: end to end, audited.

    python -m experiments.decode_layer --prompt="ROMEO:" --steps=50
    python -m experiments.decode_layer --depth=all --temperature=0.8 --top_p=0.9

Two emulated nodes decode with the packaged tiny model; layer 0 and the next layer's Q/K/V run on
shards, the other layers are unmodified. Cost: half a minute and 1 GB on two cores. A 1.5B model in
f32 takes 14 GB and half a second a step, the unsharded reference beside it included.

Expected: the audit finds 4 reduce-scatters and 2 statistics for the layer, one more of each for the
next layer's Q/K/V, and one all-gather after them; every parity figure is below 1e-5 in f32.
"""

from fcjax import commands

if __name__ == "__main__":
    commands.run("decode", __doc__)
