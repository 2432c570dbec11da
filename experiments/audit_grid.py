"""The audit's verdict for each depth and number of nodes, as a table.

    python -m experiments.audit_grid --model=1.5b

Cost at 1.5B: ten minutes on two cores; seconds for the tiny model. Expected: "clean" in each cell,
with the number of collectives inside the interval and after it (the compatibility all-gather; none
where all layers are inside).
"""

from fcjax import commands

if __name__ == "__main__":
    commands.run("audit-grid", __doc__)
