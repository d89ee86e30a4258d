"""Ways to compute masked attention, one file each. `pyg_topomask.ops.attention.choice` chooses among them.

Each file has ``refuses(problem)``, the reason why it cannot serve; ``work(problem)``, the amounts of work by which
`costs.estimate` predicts its time, unless these are those of `Problem.pair_work`; and ``attend(problem)``, the outputs.
Engines do not import each other, except ``parts``, which cuts a problem for the others.
"""
