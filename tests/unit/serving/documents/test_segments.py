"""Documents: markup, times and entities stay as they are around what is translated."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transduce.decoding.output import Output
from transduce.decoding.word_alignment import alignment_of
from transduce.serving.documents import (
    Segments,
    html_segments,
    srt_segments,
    text_segments,
    vtt_segments,
)


def upper(found: Segments) -> str:
    return found.join([text.upper() for text in found.texts])


def test_tags_attributes_comments_and_scripts_are_kept() -> None:
    source = (
        "<!DOCTYPE html>\n<html><head><title>tea &amp; cake</title>"
        '<script>if (a<b) { say("tea") }</script><style>p > b {}</style></head>\n'
        '<body class="x" data-y=\'a > b\'><p title="of tea">a cup\n  of <B>tea</b ><br/></p>'
        "<!-- tea --><pre>tea</pre><code>tea <b>tea</b></code> uncle</body></html>\n"
    )
    found = html_segments(source)
    assert found.texts == ["tea & cake", "a cup of tea", "uncle"]
    # A sentence is one segment, whatever is bold in it; of a <code> at its edge nothing is left.
    expected = source.replace(">tea &amp; cake<", ">TEA &amp; CAKE<")
    expected = expected.replace("a cup\n  of ", "A CUP OF ").replace("<B>tea</b >", "<B>TEA</b >")
    assert upper(found) == expected.replace(" uncle<", " UNCLE<")


def test_what_is_marked_is_not_translated() -> None:
    source = '<p translate="no">tea <i>cup</i></p><span class="a notranslate">iroh</span><p>tea</p>'
    assert html_segments(source).texts == ["tea"]
    assert html_segments("<code>a<br><b>b</code>tea").texts == ["tea"]  # <b> is never closed
    nested = '<span translate="no">a <span>b</span> c</span> tea'
    assert html_segments(nested).texts == ["tea"]


def test_entities_come_back_as_they_were() -> None:
    source = "<p>1 &lt; 2 &amp; tea&nbsp;&copy; &#8212; caf&eacute; a<b>"
    found = html_segments(source)
    assert found.texts == ["1 < 2 & tea\xa0© — café a"]
    assert found.join(found.texts) == source
    assert html_segments("tea").join(["<script> & é"]) == "&lt;script&gt; &amp; é"


@given(st.text(alphabet="<>&/!-=\"' \nabé;#3ptx[]?", max_size=60))
@example("<![3")  # on which Python's own parser fails
@example("a<![CDATA[b]]>c<!a<?b>")
def test_any_markup_survives(source: str) -> None:
    """What is not a segment is the source, character by character; tags stay the same tags."""
    found = html_segments(source)
    marked = found.join(["\0"] * len(found.texts))
    rest = source
    for kept in marked.split("\0"):
        assert kept in rest
        rest = rest[rest.index(kept) + len(kept) :]
    if "<![" not in source:  # the parser of this test is Python's own
        assert tags(upper(found)) == tags(source)


def tags(source: str) -> list[str]:
    found: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append(self.get_starttag_text() or "")

        def handle_endtag(self, tag: str) -> None:
            found.append(tag)

    parser = Tags()
    parser.feed(source)
    parser.close()
    return found


def test_lines_of_text_and_their_ends_are_kept() -> None:
    source = "  a cup\r\n\r\nof tea \n---\n\ttea"
    found = text_segments(source)
    assert found.texts == ["a cup", "of tea", "tea"]
    assert upper(found) == "  A CUP\r\n\r\nOF TEA \n---\n\tTEA"


SRT = """1
00:00:01,000 --> 00:00:02,500
<i>a cup of tea</i>

2
00:00:03,000 --> 00:00:04,000 X1:40
- tea & cake?
- no

3
00:00:05,000 --> 00:00:06,000
uncle iroh made a cup of tea
and zuko spilt it
"""


def test_subrip_keeps_numbers_times_and_tags() -> None:
    found = srt_segments(SRT)
    assert found.texts == [
        "a cup of tea",
        "tea & cake?",
        "no",
        "uncle iroh made a cup of tea and zuko spilt it",
    ]
    shown = upper(found)
    lines, before = shown.splitlines(), SRT.splitlines()
    assert len(lines) == len(before)
    assert [one for one in lines if "-->" in one] == [one for one in before if "-->" in one]
    assert "<i>A CUP OF TEA</i>" in shown
    assert "- TEA & CAKE?\n- NO\n" in shown
    # As many lines as before, of about the same length.
    assert lines[-2:] == ["UNCLE IROH MADE A CUP OF", "TEA AND ZUKO SPILT IT"]


def test_a_short_translation_takes_one_line() -> None:
    found = srt_segments("1\n00:00:01,000 --> 00:00:02,000\na cup\nof tea\n")
    assert found.join(["tee"]) == "1\n00:00:01,000 --> 00:00:02,000\ntee\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_webvtt_keeps_notes_styles_and_voices(end: str) -> None:
    source = (
        "\ufeffWEBVTT - of tea\n\nNOTE tea\ntea\n\nSTYLE\n::cue { color: tea }\n\n\n"
        "tea\n00:01.000 --> 00:02.000 align:start\n<v Iroh>tea &amp; cake</v>\n<i>tea</i>\n"
    ).replace("\n", end)
    found = vtt_segments(source)
    assert found.texts == ["tea & cake", "tea"]
    expected = source.replace("tea &amp; cake", "TEA &amp; CAKE").replace("<i>tea", "<i>TEA")
    assert upper(found) == expected
    assert found.join(["a < b", "tea"]).count("a &lt; b") == 1


class Given:
    """An alignment by a table of words: source word to target words."""

    def __init__(self, source: str, target: str, links: dict[str, str]) -> None:
        self.source, self.target, self.links = source, target, links

    def find(self, start: int, end: int) -> tuple[int, int]:
        words = self.source[start:end].split()
        places = [self.target.index(self.links[word]) for word in words]
        last = max(words, key=lambda word: self.target.index(self.links[word]))
        return min(places), max(places) + len(self.links[last])


def test_tags_follow_their_words() -> None:
    source = '<p>I have <b>seen</b> a <a href="x"><i>blue</i> cup</a>.</p>'
    found = html_segments(source)
    assert found.texts == ["I have seen a blue cup."]
    links = {"I": "Ich", "have": "habe", "seen": "gesehen", "a": "eine"}
    links |= {"blue": "blaue", "cup": "Tasse"}
    text = "Ich habe eine blaue Tasse gesehen."
    expected = '<p>Ich habe eine <a href="x"><i>blaue</i> Tasse</a> <b>gesehen</b>.</p>'
    assert found.join([Given(found.texts[0], text, links)]) == expected


def test_markup_that_stands_alone_keeps_its_place_among_the_words() -> None:
    source = 'take <code>tea</code> with <img src="cup"> uncle<!-- iroh --> now'
    found = html_segments(source)
    assert found.texts == ["take with uncle now"]
    assert upper(found) == ('TAKE <code>tea</code> WITH <img src="cup"> UNCLE<!-- iroh --> NOW')


def test_an_element_around_all_of_it_is_no_part_of_the_segment() -> None:
    found = html_segments(" <b> <i>tea cup</i></b> <br><i>a</i> <u>b</u> ")
    assert found.texts == ["tea cup", "a b"]
    assert [len(tags) for tags in found.tags] == [0, 2]
    assert upper(found) == " <b> <i>TEA CUP</i></b> <br><i>A</i> <u>B</u> "


PIECES = ["<b>", "</b>", "</i>", "<br>", "<img>", "tea ", "cup "]
PIECES += ["<b>tea </b>", "<i>cup</i> ", "<b>a <i>cup </i>of <i>tea</i></b> "]


@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_no_tag_is_lost_whatever_the_alignment(pieces: list[str], chance: random.Random) -> None:
    class Anywhere:
        target = "eine Tasse Tee"

        def find(self, start: int, end: int) -> tuple[int, int]:
            first = chance.choice([0, 5, 11, 14])
            return first, max(first, chance.choice([0, 4, 10, 14]))

    found = html_segments("".join(pieces))
    written = found.join([Anywhere()] * len(found.texts))
    assert sorted(tags(written)) == sorted(tags("".join(pieces)))
    text = re.sub(" *<[^>]*>", "", written)
    assert text.replace(" ", "").count("eineTasseTee") == len(found.texts)
    if found.texts and balanced("".join(pieces)):
        assert balanced(written)


def balanced(source: str) -> bool:
    waiting: list[str] = []
    for tag in re.findall("</?[bi]>", source):
        if tag[1] != "/":
            waiting.append(tag[1])
        elif not waiting or waiting.pop() != tag[2]:
            return False
    return not waiting


def test_words_are_aligned_by_attention() -> None:
    source, text = "a blue cup.", "eine Tasse, blau"
    weights = np.zeros((6, 5), np.float32)
    # Target tokens ei ne Tasse , bl(au), source tokens a blue cup . END; the last token is END.
    for target, chosen in enumerate([0, 0, 2, 3, 1, 4]):
        weights[target] = 0.1
        weights[target, chosen] = 0.6
    output = Output(
        text,
        0.0,
        tokens=["▁ei", "ne", "▁Tasse", ",", "▁blau", "</s>"],
        source_tokens=["▁a", "▁blue", "▁cup", ".", "</s>"],
        attention=weights[None, None],
    )
    found = alignment_of(source, output)
    assert text[slice(*found.find(2, 6))] == "blau"
    assert text[slice(*found.find(0, 1))] == "eine"
    assert text[slice(*found.find(7, 10))] == "Tasse"
    # Without attention, or with tokens that are not in the text: by position.
    for other in (replace(output, attention=None), replace(output, source_tokens=["?", "</s>"])):
        assert text[slice(*alignment_of(source, other).find(2, 6))] == "Tasse"
