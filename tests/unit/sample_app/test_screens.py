"""Test screens: uploads, versions, the archive, copies, and deletions with their files."""

from __future__ import annotations

import io
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from google.api_core.exceptions import NotFound
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from sample_app import pictures
from sample_app.storage import BucketStorage, FolderStorage, new_name
from tests.unit.sample_app.conftest import Site
from tests.unit.sample_app.test_projects import create


def picture(kind: str = "PNG", size: tuple[int, int] = (40, 30), colour: str = "teal") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


@pytest.fixture
def ada(site: Site) -> FlaskClient:
    return site.sign_in()


@pytest.fixture
def path(ada: FlaskClient) -> str:
    return create(ada, "A sundial")


def upload(client: FlaskClient, path: str, name: str, data: bytes | None = None) -> Any:
    data = picture() if data is None else data
    return client.post(
        f"{path}/screens", data={"file": (io.BytesIO(data), name)}, follow_redirects=True
    )


def screens(client: FlaskClient, path: str) -> list[str]:
    return re.findall(rf'href="({path}/screens/\d+)">\s*<img', client.get(path).text)


def files(site: Site) -> list[Path]:
    folder = site.app.extensions["studio"][2]._folder
    return list(folder.iterdir()) if folder.exists() else []


REFUSED = [
    ("empty.png", b"", "choose a picture"),
    ("page.png", b"<html><script>alert(1)</script>", "this is no picture"),
    ("half.png", picture()[:60], "this is no picture"),
    ("icon.bmp", picture("BMP"), "this is no picture"),
    ("a" * 101 + ".png", picture(), "at most 100 characters"),
]


def test_files_that_are_refused(site: Site, ada: FlaskClient, path: str) -> None:
    for name, data, message in REFUSED:
        page = upload(ada, path, name, data)
        assert page.request.path == path
        assert message in page.text
        assert files(site) == []


@pytest.mark.parametrize("refused", [True, False], ids=["", "the control"])
def test_two_pictures_are_decoded_at_once(
    ada: FlaskClient, path: str, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """A third one is refused: each takes 160 MB at most, and its thread is for others."""
    if not refused:
        monkeypatch.setattr(pictures, "_DECODED", threading.BoundedSemaphore(3))
    decoding: list[object] = []
    pages: list[str] = []

    def decode(image: object) -> None:
        decoding.append(image)
        if len(decoding) < 3:
            pages.append(upload(ada, path, f"{len(decoding)}.png").text)

    monkeypatch.setattr(PngImageFile, "load", decode)
    upload(ada, path, "0.png")
    third, second = pages
    assert ("Other pictures are being looked at" in third) is refused
    assert "Other pictures are being looked at" not in second
    assert len(decoding) == (2 if refused else 3)


def test_others_screens_are_not_to_be_had(site: Site, ada: FlaskClient, path: str) -> None:
    upload(ada, path, "home.png")
    (screen,) = screens(ada, path)
    site.client.post("/api/learners", json={"name": "Bruno"})
    bruno = site.sign_in("bruno")
    for each in (screen, f"{screen}/latest", f"{path}/screens/x", f"{path}/screens/7"):
        assert bruno.get(each).status_code == 404
    assert upload(bruno, path, "home.png").status_code == 404


def test_a_duplicate_has_screens_and_files_of_its_own(
    site: Site, ada: FlaskClient, path: str
) -> None:
    upload(ada, path, "home.png")
    upload(ada, path, "home.png", picture(colour="red"))
    upload(ada, path, "about.png")
    page = ada.post(f"{path}/duplicate", follow_redirects=True)
    assert "The copy is called “A sundial (Copy 1)”." in page.text
    copy = page.request.path
    home, about = sorted(screens(ada, copy), key=lambda each: "about" in ada.get(each).text)
    assert ada.get(f"{home}/latest").data == picture(colour="red")
    assert ada.get(f"{about}/latest").data == picture()
    assert len(files(site)) == 5
    ada.post(f"{path}/delete")
    site.run_jobs()
    assert len(files(site)) == 2
    assert ada.get(f"{home}/latest").status_code == 200


def test_a_file_whose_upload_was_not_completed_is_swept(
    site: Site, ada: FlaskClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends after it has written the file."""

    def die() -> None:
        raise LookupError

    upload(ada, path, "kept.png")
    with monkeypatch.context() as patch:
        patch.setattr("sample_app.demonstration.think", die)
        with pytest.raises(LookupError):
            upload(ada, path, "lost.png")
    assert len(files(site)) == 2
    site.relay(2 * 3600)
    assert len(files(site)) == 1
    (screen,) = screens(ada, path)
    assert ada.get(f"{screen}/latest").status_code == 200


# --- storages ---------------------------------------------------------------------------------


class Bucket:
    def __init__(self) -> None:
        self.blobs: dict[str, tuple[bytes, str]] = {}

    def blob(self, name: str) -> Any:
        bucket = self

        class Blob:
            def upload_from_string(self, data: bytes, content_type: str) -> None:
                bucket.blobs[name] = data, content_type

            def download_as_bytes(self) -> bytes:
                return bucket.blobs[name][0]

            def delete(self) -> None:
                if bucket.blobs.pop(name, None) is None:
                    raise NotFound(name)

        return Blob()

    def get_blob(self, name: str) -> Any:
        return self.blob(name) if name in self.blobs else None


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_storage(kind: str, tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path / "a") if kind == "folder" else BucketStorage(Bucket())
    name = new_name()
    assert storage.read(name) is None
    storage.write(name, b"a file", "image/png")
    assert storage.read(name) == b"a file"
    for _ in range(2):
        storage.delete(name)
    assert storage.read(name) is None
    for bad in ("", "../etc/passwd", name.upper(), f"{name}/x"):
        with pytest.raises(ValueError, match="no name of a file"):
            storage.read(bad)
