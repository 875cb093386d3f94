"""Markup of any kind is cut and put together again in time that is linear in its length."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from transduce.decoding.word_alignment import Proportional, Words, words_of
from transduce.serving import threads
from transduce.serving.documents import (
    Segments,
    html_segments,
    srt_segments,
    text_segments,
    vtt_segments,
    xml_segments,
)
from transduce.serving.documents.markup import attributes, tokens

REPEATED = ["<", "<!--", "&", "<svg>", "<script>", "<![CDATA[", "<b>", "a <b>", "a <b>c</b> "]
REPEATED += [
    "</b>",
    "<svg></b>",
    "<a b='",
    "<a b=c ",
    "a <img> ",
    "<?",
    "<a b",
    "<a =",
    "&a;",
    "< ",
]
REPEATED += ["<code> ", "<i></b>", "<!-", "--", "<title>", "<b translate ", "a<b></i>"]


def roundtrip(cut: Callable[[str], Segments], source: str) -> str:
    found = cut(source)
    return found.join(found.texts)


def seconds(cut: Callable[[str], Segments], source: str) -> float:
    """Of the processor, the least of some attempts."""
    minimum = float("inf")
    for _ in range(3):
        start = time.thread_time()
        roundtrip(cut, source)
        minimum = min(minimum, time.thread_time() - start)
    return minimum


@pytest.mark.parametrize("piece", REPEATED)
@pytest.mark.parametrize("cut", [html_segments, xml_segments])
def test_eight_times_as_much_takes_no_more_than_its_share(
    cut: Callable[[str], Segments], piece: str
) -> None:
    """Quadratic work would take 64 times as long; what is not measurable is quick enough."""
    short = piece * (2_000 // len(piece))
    assert seconds(cut, short * 8) < 24 * seconds(cut, short) + 0.01


@pytest.mark.parametrize("end", ["</b>" * 100_000, ""])
def test_elements_nested_a_hundred_thousand_deep(end: str) -> None:
    source = "<b>" * 100_000 + "tea" + end
    assert roundtrip(html_segments, source) == source
    # With text between them, each is an element of the same sentence.
    deep = "a <b>" * 10_000 + "tea" + "</b>" * 10_000 * bool(end)
    assert roundtrip(html_segments, deep).replace(" ", "") == deep.replace(" ", "")


def test_nested_elements_follow_their_words() -> None:
    found = html_segments("a <b>b <b>c <b>d</b></b></b>")
    assert found.texts == ["a b c d"]
    assert found.join(["e f g h"]) == "e <b>f <b>g <b>h</b></b></b>"


@pytest.mark.parametrize("cut", [srt_segments, vtt_segments])
@pytest.mark.parametrize("line", ["<", "-", "a\n", "{\\", "1", " ", "1:", "aa "])
def test_subtitles_too(cut: Callable[[str], Segments], line: str) -> None:
    head = "1\n00:00:01,000 --> 00:00:02,000\nb\n"
    short = line * (1_000 // len(line))
    assert seconds(cut, head + short * 8) < 24 * seconds(cut, head + short) + 0.01


def test_tokens_are_the_whole_source() -> None:
    source = '<!DOCTYPE a><p a=">" b=\'<\' c>1 < 2<!-- > --><!--> </p ><script>"<b>"</script></><é'
    found = list(tokens(source))
    assert "".join(source[one.start : one.end] for one in found) == source
    shown = [(one.kind, one.name, source[one.start : one.end]) for one in found]
    assert shown == [
        ("declaration", "", "<!DOCTYPE a>"),
        ("start", "p", "<p a=\">\" b='<' c>"),
        ("text", "", "1 < 2"),
        ("comment", "", "<!-- > -->"),
        ("comment", "", "<!-->"),
        ("text", "", " "),
        ("end", "p", "</p >"),
        ("start", "script", "<script>"),
        ("raw", "", '"<b>"'),
        ("end", "script", "</script>"),
        ("comment", "", "</>"),
        ("text", "", "<é"),
    ]


def test_attributes_of_a_tag() -> None:
    found = attributes("<a HREF = 'x y' b=c/ d e=\"\" b=2>")
    assert found == {"href": "x y", "b": "c/", "d": "", "e": ""}


def test_words_within_a_part_are_those_of_which_half_is_inside() -> None:
    text = "a blue, cup of tea"
    spans = words_of(text)
    words = Words(spans)
    for start in range(len(text) + 1):
        for end in range(start, len(text) + 1):
            expected = [
                number
                for number, (first, last) in enumerate(spans)
                if start <= (first + last) / 2 <= end and start < last and first < end
            ]
            assert list(words.within(start, end)) == expected
    assert Proportional("", "").find(0, 0) == (0, 0)


def test_xml_that_stands_beside_text_is_within_its_sentence() -> None:
    found = xml_segments('<doc><p>a <x id="1"/> cup of <G>tea</G></p><p>uncle</p></doc>')
    assert found.texts == ["a cup of tea", "uncle"]
    assert found.join([text.upper() for text in found.texts]) == (
        '<doc><p>A <x id="1"/> CUP OF <G>TEA</G></p><p>UNCLE</p></doc>'
    )
    assert xml_segments("a <x/> cup").texts == ["a cup"]
    assert xml_segments("a <x>cup</x> of", splitting=["x"]).texts == ["a", "cup", "of"]
    assert xml_segments("<p>a</p><p>b</p>", non_splitting=["p"]).texts == ["ab"]
    assert xml_segments("<p>a</p> <p>b</p>", outline=False).texts == ["a b"]
    assert xml_segments("a <x>cup</x> of", skipped=["x"]).texts == ["a of"]
    assert xml_segments("<script>tea</script><p>a<![CDATA[<p>]]>b</p>").texts == ["tea", "ab"]


def test_work_ends_with_its_time_or_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = html_segments("tea <b>cup</b> of")
    asked: list[Callable[[], object]] = [
        lambda: html_segments("<b>tea</b>"),
        lambda: xml_segments("<b>tea</b>"),
        lambda: srt_segments("tea"),
        lambda: text_segments("tea"),
        lambda: marked.join(marked.texts),
    ]
    for call in asked:
        call()

    gone = SimpleNamespace(dropped=threading.Event())
    gone.dropped.set()
    monkeypatch.setattr(threads._own, "piece", gone, raising=False)  # as in a thread for nobody
    for call in asked:
        with pytest.raises(threads.NotWantedError):
            call()
