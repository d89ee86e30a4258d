"""Pictures of masks, their reach and their errors, of the weights of attention, and of training curves.

matplotlib is imported when a picture is drawn, so that the package works without it.
"""

from pyg_topomask.viz.drawing import literal, save_figure
from pyg_topomask.viz.lines import plot_curves, plot_reach, plot_walks
from pyg_topomask.viz.mask import matrix_of, plot_mask

__all__ = ["literal", "matrix_of", "plot_curves", "plot_mask", "plot_reach", "plot_walks", "save_figure"]
