"""The tables of RESULTS.md, docs/papers.md, docs/verdicts.md and README.md.

They come from published claims (papers.yaml), our own questions (questions.yaml) and what to take (choices.yaml).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import _verdicts as rules
import yaml
from _fitting import mean_and_spread

PAPERS, QUESTIONS, CHOICES = (Path(__file__).with_name(f"{name}.yaml") for name in ("papers", "questions", "choices"))
MANY = 4  # claims of which a table has their number alone
FIGURE = re.compile(r"\{(\w+) \| (.+?) \| (.+?) \| (\d)(%?)\}")
"""A figure in papers.yaml: report, names of the row, place in the row, decimals, and a sign for per cent."""


def figure(stored: Path, found: re.Match[str]) -> str:
    """A figure of a report: mean and deviation, or the quotient of two medians; "–" without the row.

    Raises:
        ValueError: If several rows have all names.
    """
    name, names, place, decimals, percent = found.groups()
    row = rules.row_of(rules.report_of(stored / f"{name}.json"), names)
    if row is None:
        return "–"
    if " ÷ " in place:
        return f"{rules.median(row, place):.{decimals}f}"
    return mean_and_spread([100 ** (percent == "%") * value for value in rules.numbers(row, place)], int(decimals))


def finding(row: Mapping[str, Any], stored: Path) -> rules.Finding:
    """The word for all claims of a row, and their figures, or how many hold."""
    if row.get("comparable", True) is False:
        return rules.Finding(rules.NOTHING)
    how = rules.How(**{name: row[name] for name in rules.How._fields if name in row})
    claims = [rules.judge(claim, stored, how) for claim in row.get("claims", [])]
    word = rules.overall(claim.word for claim in claims) if claims else rules.NOT_RUN
    ran = [claim for claim in claims if claim.word != rules.NOT_RUN]
    some = f"{sum(claim.word == rules.CONFIRMED for claim in ran)} of {len(claims)}"
    return rules.Finding(word, "; ".join(claim.figures for claim in ran) if len(ran) < MANY else some)


def filled(text: str, stored: Path) -> str:
    """A text with its figures."""
    return FIGURE.sub(partial(figure, stored), text)


def lines(paper: Mapping[str, Any], stored: Path) -> Iterator[str]:
    """The part of one paper."""
    found = [finding(row, stored) for row in paper["rows"]]
    yield f"\n## {paper['name']}\n"
    yield f"[{paper['title']}]({paper['link']}): {counted(found)}"
    yield "\n| | claims | published | ours | verdict |\n|---|---|---|---|---|"
    for row, (word, figures) in zip(paper["rows"], found):
        ours = filled(row.get("ours", "–"), stored) + (f" ([page]({row['page']}.md))" if "page" in row else "")
        state = (
            f"**{word}**"
            + (f", {figures}" if word not in (rules.CONFIRMED, rules.NOT_RUN, rules.NOTHING) else "")
            + (f": {row['why']}" if "why" in row else "")
        )
        yield f"| {row['item']} | {row['claim']} | {row['published']} | {ours} | {state} |"
    yield f"\n{paper['others']} Theorems: {paper['theorems']}"


def counted(found: Iterable[rules.Finding]) -> str:
    """How many claims have each word."""
    return ", ".join(f"{count} {word}" for word, count in Counter(word for word, _ in found).most_common())


def page(stored: Path) -> str:
    """The page after its introduction, by the reports in that folder."""
    papers = yaml.safe_load(PAPERS.read_text())
    return "\n".join(line for paper in papers for line in lines(paper, stored)) + "\n"


def verdicts(stored: Path) -> str:
    """The table of docs/verdicts.md: the answers to our own questions."""
    made = ["\n| our own question | figures | difference (95 %) | verdict |\n|---|---|---|---|"]
    for row in yaml.safe_load(QUESTIONS.read_text()):
        word, figures = finding(row, stored)
        how = ", paired" * row.get("paired", False) + (f", {row['looks']} looks" if "looks" in row else "")
        text = f"[{row['question']}](results/{row['page']}.md)"
        made.append(f"| {text} | {filled(row['figures'], stored)} | {figures}{how} | **{word}** |")
    return "\n".join(made) + "\n"


def first_page(stored: Path) -> str:
    """The tables of RESULTS.md: how many published claims, and which questions of our own, have each word."""
    made = ["\n| paper | published claims |\n|---|---|"]
    for paper in yaml.safe_load(PAPERS.read_text()):
        words = counted(finding(row, stored) for row in paper["rows"])
        made.append(f"| [{paper['name']}](docs/papers.md#{paper['name'].lower()}) | {words} |")
    made.append("\n| verdict | our own questions |\n|---|---|")
    questions: dict[str, list[str]] = {word: [] for word in (rules.CONFIRMED, rules.REFUTED, rules.OPEN, rules.NOT_RUN)}
    for row in yaml.safe_load(QUESTIONS.read_text()):
        questions[finding(row, stored).word].append(f"[{row['question']}](docs/results/{row['page']}.md)")
    made += [f"| **{word}** | {' · '.join(texts)} |" for word, texts in questions.items() if texts]
    return "\n".join(made) + "\n"


def choices(stored: Path) -> str:
    """The table of README.md: what to take for which data, and why."""
    made = ["| your data | take | measured | is what you take better? |\n|---|---|---|---|"]
    for row in yaml.safe_load(CHOICES.read_text()):
        text = f"{filled(row['figures'], stored)} ([page](docs/results/{row['page']}.md), {row['seeds']} seeds)"
        made.append(f"| {row['data']} | {row['take']} | {text} | **{finding(row, stored).word}** |")
    return "\n".join(made) + "\n"
