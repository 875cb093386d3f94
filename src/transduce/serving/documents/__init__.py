"""Texts, markup, subtitles and office documents cut into what is translated and what is kept."""

from transduce.serving.documents.html import html_segments, xml_segments
from transduce.serving.documents.packages import Package, read_package
from transduce.serving.documents.segments import Segments, text_segments, whole_segment
from transduce.serving.documents.subtitles import srt_segments, vtt_segments

__all__ = [
    "Package",
    "Segments",
    "html_segments",
    "read_package",
    "srt_segments",
    "text_segments",
    "vtt_segments",
    "whole_segment",
    "xml_segments",
]
