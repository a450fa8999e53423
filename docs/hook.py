"""Hooks of the site's build: pages that lie elsewhere in the repository, and links in docstrings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds README.md, the reference, and all files to which they link, directly or not, at their own paths."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs/api").glob("*.md"))]
    for path in found:  # grows in the loop
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
        if path.suffix == ".md":
            for target in re.findall(r"\]\(([^)#:]+)", path.read_text(encoding="utf-8")):
                linked = (path.parent / target).resolve()
                if linked.is_file() and linked not in found:
                    found.append(linked)
    return files


class Docstrings(griffe.Extension):
    """Links Sphinx's roles, such as ``:class:`Agent```, to what the pages document, and reads sections ``Example:``."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value.replace("Example:\n", "Examples:\n")
            obj.docstring.value = re.sub(r":\w+:`~?([^`]+)`", lambda role: _link(obj, role[1]), text)


def _link(obj: griffe.Object, name: str) -> str:
    first, _, rest = name.partition(".")
    try:
        target = f"{obj.resolve(first)}.{rest}".rstrip(".")
    except griffe.NameResolutionError:
        target = name
    command = target.removeprefix("rlstack.")
    if (ROOT / "rlstack" / f"{command}.py").is_file():  # its function is called like its module
        target += f".{command}"
    return f'<autoref identifier="{target}" optional><code>{name}</code></autoref>'
