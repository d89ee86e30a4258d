"""Warn about everything that a page of the site would load from the network; links that readers follow are no loads."""

import re
from pathlib import Path

from sphinx.util import logging

logger = logging.getLogger(__name__)
LOADS = (
    re.compile(r"<(?:script|img|iframe|source|video|embed)\b[^>]*\bsrc=[\"'](?:https?:)?//[^\"']+"),
    re.compile(r"<link\b(?![^>]*rel=[\"']canonical)[^>]*\bhref=[\"'](?:https?:)?//[^\"']+"),
    re.compile(r"(?:@import\s+|url\()\s*[\"']?(?:https?:)?//[^\"')]+"),
)


def loads(text):
    """Everything in a page or style sheet that a browser would load from another host."""
    return [found for pattern in LOADS for found in pattern.findall(text)]


def check(app, exception):
    if exception is None and app.builder.format == "html":
        for path in sorted(Path(app.outdir).rglob("*")):
            if path.suffix in (".html", ".css"):
                for found in loads(path.read_text(encoding="utf-8")):
                    logger.warning("%s loads from the network: %s", path.relative_to(app.outdir), found[:200])


def setup(app):
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
