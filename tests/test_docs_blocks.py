"""Pages read the same on GitHub and on the site, and every code block of them is run or checked.

- ``python`` blocks of a page run one after the other in an empty folder. Programs of `examples/` have their own tests.
- After "Save this as `file`", a block is written to this file; a Python file of tests is also run.
- ``bash`` blocks on a page that saves a config are run if they are commands of `topomask`.
- A ``text`` block after one of these is its output, or lines of it.
- Other ``yaml`` blocks are parts of a config; commands of other ``bash`` blocks exist and have their options.
"""

import ast
import contextlib
import io
import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml

pytest.importorskip("lightning")
pytest.importorskip("pydantic")

from pyg_topomask.run import cli
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.config.schema import all_keys, keys

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RESULTS.md", "CHANGELOG.md", "configs/README.md")]
COPIES = {"changelog.md", "config_files.md", "contributing.md", "results.md"}  # of the site, made where it is built
PAGES += sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "docs" or path.name not in COPIES)
EXAMPLES = {path.read_text("utf-8").split('"""\n\n', 1)[1] for path in (ROOT / "examples").glob("*.py")}
SECTIONS = {key.name.split(".")[0] for key in keys()}
IGNORED_KEYS = {key.name for key in keys() if key.no_effect_because}
FIXED_KEYS = {key.name for key in keys() if key.no_effect_because == ""}


class Block(NamedTuple):
    language: str
    code: str
    file: str | None


def blocks(page):
    end, text = 0, page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\S*).*\n((?:.*\n)*?)```$", text, re.M):
        file = re.search(r"[Ss]ave (?:this|it) as\s+`(\S+)`", text[end : found.start()])
        yield Block(found[1], found[2], file and file[1])
        end = found.end()


def prose(page):
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def headings(page):
    """What GitHub makes of headings in addresses."""
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", prose(page), re.M))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def saves_a_config(page):
    return any(block.file and block.file.endswith(".yaml") for block in blocks(page))


every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_github_shows_what_the_site_shows(page):
    """No directives, roles and comments of MyST, no empty links and prompts, and links that lead somewhere."""
    assert {block.language for block in blocks(page)} <= {"python", "bash", "text", "yaml"}
    text = re.sub(r"`[^`\n]*`", "`", prose(page))
    assert not re.search(r"^%|\[\]\(|\{(py:|doc|ref|class|func)|\.rst\)", text, re.M)
    assert not any(re.search(r"^\$ ", block.code, re.M) for block in blocks(page))
    for file, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = page.parent / file if file else page
        assert target.exists(), file
        assert not heading or heading in headings(target), f"{file}#{heading}"


@pytest.fixture
def surroundings(tmp_path, monkeypatch, registries):
    """An empty folder, one thread, and names that are restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("pyg_topomask.run.seed_run.write_curves", lambda path, *_: path.touch())
    monkeypatch.setenv("COLUMNS", "120")
    threads = torch.get_num_threads()
    modules = set(sys.modules)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for name in {"own_module"} & (set(sys.modules) - modules):
        del sys.modules[name]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if saves_a_config(page) or any(block.language == "python" for block in blocks(page))],
    ids=lambda page: page.stem,
)
def test_blocks_run_in_order(page, surroundings):
    names, output, with_config = {"__name__": "page"}, "", saves_a_config(page)
    for block in blocks(page):
        if block.file is not None:
            Path(block.file).write_text(block.code, encoding="utf-8")
            if block.file.startswith("test_"):
                run_python(block.code, {"__name__": "tests"})
        elif block.language == "python" and block.code not in EXAMPLES:
            output = run_python(block.code, names)
        elif block.language == "bash" and with_config and block.code.startswith("topomask"):
            output = "".join(run_command(command) for command in block.code.replace("\\\n", " ").splitlines())
        elif block.language == "text":
            assert set(block.code.splitlines()) <= set(output.splitlines())


def run_python(code, names):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "block", "exec"), names)
    return printed.getvalue()


def run_command(command):
    with contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Lightning's about small data
        code = cli.main(shlex.split(command)[1:])
    assert code == 0, f"{command}\n{printed.getvalue()}"
    return printed.getvalue()


@every_page
def test_parts_of_configs_and_commands_exist(page):
    saved = {block.file for block in blocks(page)}
    for block in blocks(page):
        if block.language == "yaml" and block.file is None:
            assert set(flat(yaml.safe_load(block.code))) <= set(all_keys())
        for line in block.code.replace("\\\n", " ").splitlines() if block.language == "bash" else ():
            check_command(shlex.split(line, comments=True), saved)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "migration").glob("*.md")), ids=lambda page: page.stem)
def test_tables_of_keys_are_true(page):
    """Rows ``| `key`, … | here | remark |``; keys in backticks may have a value, as in ``key: value``."""
    for row in re.findall(r"^\| (`\w+[._]\w+.*?) \| (.*?) \|", page.read_text(encoding="utf-8"), re.M):
        found = re.findall(r"`([\w.]+\w)(?:: [^`]*)?`", row[0])
        for key in (name for name in found if name.split(".")[0] in SECTIONS):
            if row[1].startswith("no effect"):
                assert key in IGNORED_KEYS, key
            elif row[1].startswith("must be"):
                assert key in FIXED_KEYS or any(fixed.startswith(f"{key}.") for fixed in FIXED_KEYS), key
            else:
                assert key in all_keys() or any(known.startswith(f"{key}.") for known in all_keys()), key


def flat(node, prefix=""):
    for key, value in node.items():
        if isinstance(value, dict) and prefix + key not in all_keys():
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def check_command(words, saved):
    while words and (re.match(r"[A-Z_]+=", words[0]) or words[0] == "export"):  # variables
        words = words[1:]
    if "pyg_topomask" in words and "-m" in words:
        words = ["topomask", *words[words.index("pyg_topomask") + 1 :]]
    if words[:1] == ["topomask"]:
        check_topomask(words[1:], saved)
    elif len(words) > 1 and words[0] in ("python", "bash") and words[1].startswith(("scripts/", ".ci/")):
        text = (ROOT / words[1]).read_text(encoding="utf-8")
        for option in (word for word in words[2:] if word.startswith("--")):
            sources = [text, *(path.read_text("utf-8") for path in (ROOT / words[1]).parent.glob("_*.py"))]
            name = rf"(?<![\w-]){option.split('=')[0]}(?![\w-])"
            assert any(re.search(name, source) for source in sources), f"{words}: no option {option}"


def check_topomask(words, saved):
    arguments, overrides = cli._parser().parse_known_args(words)
    for config in [getattr(arguments, "config", None), *getattr(arguments, "configs", ())]:
        path = ROOT / str(config)
        if config is None or config.isupper() or "=" in config:
            continue
        if path.is_file():
            load(path, overrides)
        else:
            assert path.is_dir() or config in saved, f"no such config: {config}"


def test_quoted_messages_are_those_of_the_library():
    source = [
        node.value
        for path in (ROOT / "pyg_topomask").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^> (.+)$", page, re.M)
    pieces = [piece.strip() for message in quoted for piece in message.split("…") if piece.strip()]  # … is a value
    assert len(quoted) > 10
    assert [piece for piece in pieces if not any(piece in text for text in source)] == []
