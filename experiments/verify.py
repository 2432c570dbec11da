"""Checks the evidence of a run again.

    python -m experiments.verify runs/evidence
    python -m experiments.verify runs/evidence --recompute=5

Cost: seconds; with --recompute what decoding up to those steps costs.
Expected: "verified, 250/250: 250 of 250 audited steps passed ...".
"""

from fcjax import commands

if __name__ == "__main__":
    commands.run("verify", __doc__)
