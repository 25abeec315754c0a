"""A hook for MkDocs: pages of the site that are elsewhere in the repository.

README.md and other files are also read on the code host. In the site they are normal pages, so the
hook changes the links between them and docs/.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: The page in the site, and its file in the repository.
FROM_ELSEWHERE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "model.md": "spec/README.md",
    "security.md": "SECURITY.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    for page, source in FROM_ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Redirect the links to the pages of the site."""
    if page.file.src_uri in FROM_ELSEWHERE:
        return markdown.replace("](docs/", "](")
    for name, source in FROM_ELSEWHERE.items():
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(source)}", f"]({name}", markdown)
    return markdown
