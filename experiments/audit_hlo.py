"""Audit a saved program, or one that is compiled for GPUs that are not there.

    python -m experiments.audit_hlo --hlo=runs/decode_layer-<time>/start_0/audit_T1
    .venv-aot/bin/python -m experiments.audit_hlo --topology=l4x2 --model=1.5b --dtype=bfloat16
    .venv-aot/bin/python -m experiments.audit_hlo --topology=l4x2 --model=1.5b --depth=all \\
      --temperature=0.7 --top_k=20 --top_p=0.9

`make audit-gpu` sets up the environment of the last two. Cost: seconds (a minute for the whole
1.5B), and about 1 GB for a topology.

Expected: "clean", with four reduce-scatters and two statistics for each layer, one of each for the
next layer's Q/K/V, and one all-gather after them; with --depth=all one of each for the head, the
exchanges of the choice, and no all-gather. Otherwise each violation, with the instruction.
"""

from fcjax import commands

if __name__ == "__main__":
    commands.run("audit", __doc__)
