"""The site's pages that lie outside docs/, and links between all of them: a hook of mkdocs."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "start.md", "CHANGELOG.md": "CHANGELOG.md", "SECURITY.md": "SECURITY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md", "examples/README.md": "examples.md", "email/README.md": "email.md",
    "webhooks/README.md": "webhooks.md", "reports/README.md": "reports.md",
}  # fmt: skip
# How much sooner a search finds the pages of a tab. The reference has a section for each name: without its own
# number their sum would be first for each word.
BOOST = {"Start": 9.0, "Guides": 9.0, "Operate": 4.0, "Explain": 4.0, "Project": 0.2}
REFERENCE_BOOST = 0.01
UNSEARCHED = ("mistakes.md", "CHANGELOG.md")
FILE_BLOCK = re.compile(r"^(\s*```\w+) (\S+)$", re.MULTILINE)  # which the tests write to that file
PAGES = {page: source for source, page in OUTSIDE.items()}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]+)?\)")


def on_files(files: Files, config: Any) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_nav(nav: Any, config: Any, files: Files) -> Any:
    """A search finds guides first, and what is generated or history not at all."""
    for tab in nav.items:
        for page in getattr(tab, "children", None) or []:
            page.file.boost = BOOST.get(tab.title, 1.0)
    return nav


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point each link at the page of its document; of a file that is no page, only the words stay. A missing file stays
    a link, which the strict build refuses. A block with a file name has it as its title.
    """
    name = page.file.src_uri
    boost = REFERENCE_BOOST if name.startswith(("reference", "findings")) else getattr(page.file, "boost", 1.0)
    page.meta["search"] = {"boost": boost, "exclude": name in UNSEARCHED}
    folder = posixpath.dirname(PAGES.get(name, f"docs/{name}"))

    def mended(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in OUTSIDE:
            return f"[{words}]({OUTSIDE[path]}{anchor or ''})"
        if path.startswith("docs/") and path.endswith(".md"):
            return f"[{words}]({path.removeprefix('docs/')}{anchor or ''})"
        return words if (ROOT / path).exists() else link[0]

    return FILE_BLOCK.sub(r'\1 title="\2"', LINK.sub(mended, markdown))
