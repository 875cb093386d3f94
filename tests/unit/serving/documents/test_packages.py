"""Documents of word processors: text is translated, all else in the archive is kept."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path

import pytest

from transduce.serving.documents import read_package
from transduce.serving.errors import BadRequest, TooLarge
from transduce.serving.limits import Limits

WORD = (
    '<?xml version="1.0"?><w:document><w:body><w:p><w:pPr><w:b/></w:pPr><w:r><w:t>A cup </w:t>'
    "</w:r><w:bookmarkStart/><w:r><w:rPr><w:b/></w:rPr><w:t>of tea</w:t></w:r></w:p><w:p/>"
    "<w:p><w:r><w:t>uncle &amp; Iroh</w:t><w:instrText>PAGE</w:instrText></w:r></w:p></w:body>"
    "</w:document>"
)
HEADER = "<w:hdr><w:p><w:r><w:t>top</w:t></w:r></w:p></w:hdr>"
OPEN = (
    "<office:body><text:h>Tea</text:h><text:p>a <text:span>cup</text:span> of<text:s/>tea"
    "</text:p><text:p><text:span>b</text:span><text:span> c</text:span></text:p></office:body>"
)


def archive(path: Path, **entries: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in entries.items():
            made.writestr(name.replace("__", "/").replace("_xml", ".xml"), text)
    return path


def translated(path: Path, ending: str) -> tuple[list[str], zipfile.ZipFile]:
    package = read_package(path, ending, Limits())
    found = package.segments
    written = package.write(found.join([text.upper() for text in found.texts]))
    return found.texts, zipfile.ZipFile(io.BytesIO(written))


def test_word(tmp_path: Path) -> None:
    path = archive(tmp_path / "a", types="x", word__document_xml=WORD, word__header1_xml=HEADER)
    texts, made = translated(path, ".docx")
    assert texts == ["A cup of tea", "uncle & Iroh", "top"]
    assert made.namelist() == ["types", "word/document.xml", "word/header1.xml"]
    found = made.read("word/document.xml").decode()
    expected = WORD.replace("A cup ", "A CUP").replace("of tea", " OF TEA")
    expected = expected.replace("uncle &amp; Iroh", "UNCLE &amp; IROH")
    # Spaces at the edges of a run are kept only if it says so.
    assert found == expected.replace("<w:t>", '<w:t xml:space="preserve">')
    assert ">TOP<" in made.read("word/header1.xml").decode()


def test_open_document(tmp_path: Path) -> None:
    texts, made = translated(archive(tmp_path / "a", mimetype="odt", content_xml=OPEN), ".odt")
    assert texts == ["Tea", "a cup of tea", "b c"]
    found = made.read("content.xml").decode()
    assert "<text:p>A <text:span>CUP</text:span> OF TEA</text:p>" in found
    assert made.namelist()[0] == "mimetype"


def test_what_is_too_large_or_no_document(tmp_path: Path) -> None:
    bomb = archive(tmp_path / "a", word__document_xml=WORD, big="0" * 1_000_000)
    size = 1_000_000 + len(WORD)
    with pytest.raises(TooLarge, match="unpacked"):
        read_package(bomb, ".docx", Limits(unpacked_bytes=size - 1))
    at_limits = Limits(unpacked_bytes=size, document_entries=2)
    assert read_package(bomb, ".docx", at_limits).names == ["word/document.xml"]
    with pytest.raises(TooLarge, match="files inside"):
        read_package(bomb, ".docx", Limits(document_entries=1))
    for contents in (b"", b"tea", bomb.read_bytes()[:300], b"PK\3\4" + bytes(100)):
        (tmp_path / "c").write_bytes(contents)
        with pytest.raises(BadRequest):
            read_package(tmp_path / "c", ".docx", Limits())


def test_an_archive_that_lies_about_its_sizes(tmp_path: Path) -> None:
    """Whatever its bytes are, it is a document or refused."""
    path = archive(tmp_path / "a", word__document_xml=WORD)
    raw = path.read_bytes()
    for place in range(0, len(raw), 3):
        damaged = bytearray(raw)
        damaged[place] ^= 0x55
        path.write_bytes(damaged)
        with contextlib.suppress(BadRequest, TooLarge):
            read_package(path, ".docx", Limits())
