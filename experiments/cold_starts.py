"""Audited decode steps over several cold starts, each in a process of its own.

    python -m experiments.cold_starts --cold_starts=5 --steps=50 --workdir=runs/evidence
    python -m experiments.cold_starts --resume --workdir=runs/evidence

Cost with the packaged tiny model: about a minute on two cores.
Expected: "250/250: 250 of 250 audited steps passed over 5 cold starts".
"""

from fcjax import commands

if __name__ == "__main__":
    commands.run("cold-starts", __doc__)
