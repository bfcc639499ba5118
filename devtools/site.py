"""The hook of mkdocs.yml: the README as the first page, the reference of the public names, links that leave docs/, and what
the build has made: its own pictures, and the script that draws the diagrams."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
MERMAID = "mermaid.min.js"
SECTIONS = {"plugin_core": "Python", "prefect_integration": "Prefect", "airflow_provider.operators": "Airflow"}


def on_config(config: Any) -> Any:
    if (BUILD / MERMAID).exists():  # else the theme loads it from elsewhere
        config.extra_javascript.append(MERMAID)
    return config


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "index.md", content=_readme()))
    files.append(File.generated(config, "reference.md", content=_reference()))
    if (BUILD / MERMAID).exists():
        files.append(File.generated(config, MERMAID, abs_src_path=str(BUILD / MERMAID)))
    for file in (BUILD / "images").glob("*"):
        name = f"images/{file.name}"
        if (kept := files.get_file_from_path(name)) is not None:
            files.remove(kept)
        files.append(File.generated(config, name, abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page: Any, **given: Any) -> str:
    """A file outside docs/ is not on the site, so a link to it becomes its name."""
    return re.sub(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)", _named, markdown)


def _named(link: re.Match[str]) -> str:
    text, target = link[1], link[2].removeprefix("../")
    return f"`{target}`" if text.strip("`") == target.partition("#")[0] else f"{text} (`{target}`)"


def _readme() -> str:
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\]\((CONTRIBUTING\.md|CHANGELOG\.md|LICENSE)", r"](../\1", text)


def _reference() -> str:
    """Each public name, by the module that a user imports it from."""
    parts = ["# Python reference\n\nThe fields of steps are in [arguments](arguments.md).\n"]
    for package, title in SECTIONS.items():
        parts.append(f"## {title}: `{package}`\n")
        parts += [
            f"::: {place}\n" for place in sorted(_places(package), key=lambda place: place.rpartition(".")[2].lower())
        ]
    return "\n".join(parts)


def _places(package: str) -> list[str]:
    import importlib

    module = importlib.import_module(package)
    public: dict[str, str] | None = getattr(module, "_PUBLIC", None)
    if public is None:
        return [f"{getattr(module, name).__module__}.{name}" for name in module.__all__]
    return [f"{package}.{home}.{name}" for home, names in public.items() for name in names.split()]
