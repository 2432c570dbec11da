"""The same decode at several settings of one axis: the depth, or the number of nodes.

    python -m experiments.sweep --axis=depth --depths=1,2,3,4,5,all
    python -m experiments.sweep --axis=nodes --nodes=2,3,4,5,6,7,8,12

Cost: a minute each for the packaged tiny model. Expected: every audit clean, parity below 1e-5, one
text for all; bytes grow by the same amount with each layer, and with all of them by the head; bytes
a node grow as (N - 1) / N. Emulated nodes share two cores, so step times grow with N.
"""

from fcjax import commands

if __name__ == "__main__":
    commands.run("sweep", __doc__)
