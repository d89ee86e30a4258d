import re
import runpy
from pathlib import Path

import pytest
import setuptools
import yaml

import pyg_topomask

ROOT = Path(__file__).parents[1]


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", pyg_topomask.__version__)


def test_type_annotations_are_offered_to_type_checkers():
    assert (Path(pyg_topomask.__file__).parent / "py.typed").exists()
    assert '"py.typed"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # and installed


@pytest.mark.parametrize("home", ["", "https://host/owner/name/"])
def test_the_home_page_makes_links_and_pictures_of_the_readme_absolute(monkeypatch, home):
    """The text that an index of packages shows has no link into a repository that it does not have."""
    given = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    monkeypatch.setenv("TOPOMASK_HOME_PAGE", home)
    runpy.run_path(str(ROOT / "setup.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    if not home:
        assert given["long_description"] == readme
        assert given["project_urls"] == {}
        return
    before, after = (re.findall(r"(!?)\[[^]]*\]\(([^)]*)\)", text) for text in (readme, given["long_description"]))
    inside = [(picture, link) for picture, link in before if not link.startswith(("https:", "#"))]
    assert len(inside) > 20
    for picture, link in inside:
        assert (ROOT / link.split("#")[0]).exists(), link
        kind = "raw" if picture else "blob"
        assert (picture, f"https://host/owner/name/{kind}/HEAD/{link}") in after
    assert all(link.startswith(("https:", "#")) for _, link in after)
    files = [url.split("/HEAD/")[1] for url in given["project_urls"].values() if "/HEAD/" in url]
    assert files
    assert all((ROOT / file).exists() for file in files)
    assert given["project_urls"]["Homepage"] == "https://host/owner/name"


def test_the_citation_is_of_this_version_and_names_four_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == pyg_topomask.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", cited["date-released"])
    assert len(cited["references"]) == 4


def test_the_workflow_of_releases_runs_the_scripts_and_names_no_host_and_no_account():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    tried = jobs["check"]["strategy"]["matrix"]["include"]
    classifiers = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert [row["python"] for row in tried] == re.findall(r"Python :: (3\.\d+)", classifiers)
    commands = [row["command"] for row in tried] + [step["run"] for job in jobs.values() for step in job["steps"]]
    assert {"bash .ci/run", "bash scripts/release.sh dist"} <= set(commands)
    assert "://" not in text
    assert "uses:" not in text


def test_class_variables_have_a_type():
    """Python 3.10 cannot evaluate the text of a plain ``ClassVar``, as pydantic does."""
    for path in Path(pyg_topomask.__file__).parent.rglob("*.py"):
        assert not re.search(r": ClassVar\b(?!\[)", path.read_text(encoding="utf-8")), path
