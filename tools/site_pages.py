"""Pages of the site that stand elsewhere in the repository: a hook for MkDocs.

README.md and the others are read on the code host as they are. In the site they
are pages as any other, so the links between them and docs/ are turned.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: The page in the site, and where it is in the repository.
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
    """Have the links lead where the pages are."""
    if page.file.src_uri in FROM_ELSEWHERE:
        return markdown.replace("](docs/", "](")
    for name, source in FROM_ELSEWHERE.items():
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(source)}", f"]({name}", markdown)
    return markdown
