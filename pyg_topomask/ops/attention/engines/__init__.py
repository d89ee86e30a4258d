"""Ways to compute masked attention, one file each. `pyg_topomask.ops.attention.choice` chooses among them.

Each file has ``refuses(problem)``, the reason why it cannot serve; ``attend(problem)``, the outputs; and, unless it
shares that of another one, ``work(problem)``, the amounts of work by which `costs.estimate` predicts its time. Engines
do not import each other, except ``parts``, which cuts a problem for the others.
"""
