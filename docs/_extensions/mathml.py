"""Formulas as MathML, which browsers draw without a script and without a font from elsewhere."""

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

# Commands that docutils does not know. A fence without \\big is drawn as high as what it encloses.
SUBSTITUTES = ((r"\\[bB]ig(?![a-zA-Z])", ""), (r"\\dots(?![a-zA-Z])", r"\\ldots"))

logger = logging.getLogger(__name__)


def mathml(node):
    """The formula of a node; a warning, and thus a failed build, if it cannot be converted."""
    formula = node.astext()
    known = formula
    for pattern, substitute in SUBSTITUTES:
        known = re.sub(pattern, substitute, known)
    if r"\\" in known:
        known = rf"\begin{{aligned}}{known}\end{{aligned}}"
    try:
        return tex2mathml(known)
    except Exception as error:  # docutils' converter raises several kinds
        logger.warning("cannot convert the formula %r: %s", formula, error, location=node)
        return ""


def inline(translator, node):
    translator.body.append(mathml(node))
    raise nodes.SkipNode


def displayed(translator, node):
    formula = mathml(node).replace("<math ", '<math display="block" ', 1)
    translator.body.append(f"{translator.starttag(node, 'div', CLASS='math')}{formula}</div>\n")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
