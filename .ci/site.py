"""The site's pages that lie outside docs/, and links between all of them: a hook of mkdocs."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "SECURITY.md": "SECURITY.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md", "examples/README.md": "examples.md", "email/README.md": "email.md",
    "webhooks/README.md": "webhooks.md", "reports/README.md": "reports.md",
}  # fmt: skip
FILE_BLOCK = re.compile(r"^(\s*```\w+) (\S+)$", re.MULTILINE)  # which the tests write to that file
PAGES = {page: source for source, page in OUTSIDE.items()}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]+)?\)")


def on_files(files: Files, config: Any) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point each link at the page of its document; of a file that is no page, only the words stay. A missing file stays
    a link, which the strict build refuses. A block with a file name has it as its title.
    """
    name = page.file.src_uri
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
