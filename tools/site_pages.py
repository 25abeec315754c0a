"""A hook for MkDocs: pages that are elsewhere in the repository, drawings, and metadata.

README.md and other files are also read on the code host. In the site they are normal pages, so the
hook changes the links between them and docs/.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools import timelines
from userlock._version import __version__

ROOT = Path(__file__).parents[1]
#: The page in the site, and its file in the repository.
FROM_ELSEWHERE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "emulator.md": "emulator/README.md",
    "model.md": "spec/README.md",
    "security.md": "SECURITY.md",
}


def on_config(config: Any) -> Any:
    """Show version, licence and repository at the foot of each page.

    The theme's own link to a repository would fetch its figures from elsewhere.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    repository = f'<a href="{project["urls"]["Repository"]}">Repository</a>'
    config["copyright"] = f"userlock {__version__} · {project['license']} · {repository}"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    for page, source in FROM_ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Draw timelines; redirect the links to the pages of the site.

    Those to the rendered reference go: the page has it.
    """
    markdown = timelines.with_drawings(markdown)
    markdown = re.sub(r"\s\(\[as text\]\(\.\./\.\./reference/.+?\)\)", "", markdown)
    for name, source in FROM_ELSEWHERE.items():
        markdown = re.sub(rf"\]\((?:\.\./)*{re.escape(source)}", f"]({name}", markdown)
    if page.file.src_uri in FROM_ELSEWHERE:
        markdown = re.sub(r'(\]\(|src="|srcset=")docs/', r"\1", markdown)
    return markdown
