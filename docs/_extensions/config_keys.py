"""The directive ``config-keys``: a table of every key of configs for each section, from the schema."""

import re
from itertools import groupby

from sphinx.util.docutils import SphinxDirective

from pyg_topomask.run.graphgps.reference import keys


def section_of(key):
    return key.name.rpartition(".")[0].split(".")[0]


def lines():
    """Headings and tables in Markdown."""
    for section, members in groupby(keys(), section_of):
        yield from ("", f"## {f'`{section}`' if section else 'Without a section'}", "")
        yield from ("| key | values | default | meaning |", "|---|---|---|---|")
        for key in members:
            cells = (f"`{key.name}`", shown(key.values), f"`{key.default}`", shown(key.description))
            yield "| " + " | ".join(cells) + " |"


def shown(text):
    """Text of a cell, in which Markdown finds nothing but code."""
    parts = text.replace("|", "\\|").split("`")
    return "`".join(part if number % 2 else re.sub(r"[\\*_<{^]", r"\\\g<0>", part) for number, part in enumerate(parts))


class ConfigKeys(SphinxDirective):
    def run(self):
        return self.parse_text_to_nodes("\n".join(lines()), allow_section_headings=True)


def setup(app):
    app.add_directive("config-keys", ConfigKeys)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
