"""The pages of documentation can be found, and their links lead somewhere."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What a title is called in a link: lower case, without marks, dashes for spaces."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_lists_every_page() -> None:
    listed = set(re.findall(r"\((docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert listed == {page for page in PAGES if page.startswith("docs/")}


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    text = CODE.sub("", (ROOT / page).read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("engine", ["dags", "flows"])
def test_a_page_shows_its_example_as_it_is(engine: str) -> None:
    page = {"dags": "airflow-example", "flows": "prefect-example"}[engine]
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    assert shown == (ROOT / f"example_{engine}" / "champion.py").read_text()


def test_the_install_without_ray_names_all_other_dependencies() -> None:
    (line,) = re.findall(r"^pip install (pydantic .*)$", (ROOT / "docs" / "versions.md").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[\[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert set(line.split()) == names - {"ray"}


@pytest.mark.parametrize("page", PAGES)
def test_the_prose_of_a_page_has_lines_of_160_characters_at_most(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [line for line in text.splitlines() if len(line) > 160 and not line.startswith("|")] == []


STEPS = (
    *("data", "rows", "validation", "evaluate", "tune", "batch-inference", "retraining", "ray-jobs", "checkpoint-tiers"),
    *("rehearsal", "tracking", "effective-training-time", "testing", "dagster"),
)


@pytest.mark.parametrize("page", STEPS)
def test_a_page_shows_an_example_its_options_and_its_errors(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert "```python\n" in text or "```bash\n" in text or "```yaml\n" in text
    assert {"## Options", "## Errors"} <= set(text.splitlines())
