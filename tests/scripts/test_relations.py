"""Relations as masks: walks that remember are products of the steps."""

import torch


def test_walks_that_remember_are_products_of_the_steps(script):
    (graph,) = script.graphs_of("path", 1)
    mask, steps = script.WordMask(), [script.exact(1, number) for number in (0, 1)]
    with torch.no_grad():
        for step in steps:
            step.modulation.copy_(torch.tensor([0.0, 1.0, 0.0]))
        mask.coeffs.copy_(torch.tensor([word == (0, 1) for word in script.WORDS]))
    first, second = (step(graph).to_dense() for step in steps)
    torch.testing.assert_close(mask(graph).to_dense()[0], first @ second)
