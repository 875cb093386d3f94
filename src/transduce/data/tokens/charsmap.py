"""SentencePiece's compiled normalization rules, applied as SentencePiece applies them.

At each place of a text the longest rule that fits is applied. The `tokenizers` library takes the
shortest that fits a grapheme, which differs where one rule begins another: `Y` and `Y` with an
accent, in rules that also lower-case.

The rules are a trie over UTF-8 bytes, as an array of 32-bit units (a double array, Darts), before
the replacements. https://github.com/google/sentencepiece/blob/master/src/normalizer.cc
"""

from __future__ import annotations

import struct

LEAF = 1 << 31


class Charsmap:
    """The rules of a file; each step through the trie is remembered."""

    def __init__(self, compiled: bytes) -> None:
        """Raises ValueError where they are damaged."""
        if len(compiled) < 4:
            raise ValueError("the normalization rules are damaged")
        (size,) = struct.unpack_from("<I", compiled)
        if size % 4 or 4 + size > len(compiled) or not size:
            raise ValueError("the normalization rules are damaged")
        self._units = struct.unpack_from(f"<{size // 4}I", compiled, 4)
        self._texts = compiled[4 + size :]
        self._steps: dict[tuple[int, str], tuple[int, int]] = {}
        self._plain: set[str] = set()  # letters that no rule begins with

    def normalize(self, text: str) -> str:
        """The text with every rule applied."""
        new = set(text) - self._plain
        self._plain |= {letter for letter in new if self._step(0, letter)[0] < 0}
        if new <= self._plain:
            return text
        found: list[str] = []
        place = 0
        while place < len(text):
            length, value = self._longest(text, place)
            if length:
                found.append(self._replacement(value))
                place += length
            else:
                found.append(text[place])
                place += 1
        return "".join(found)

    def _longest(self, text: str, place: int) -> tuple[int, int]:
        """How many letters the longest rule from here covers, 0 for none, and its value."""
        node, best, value = 0, 0, -1
        for length, letter in enumerate(text[place : place + 32], start=1):
            node, reached = self._step(node, letter)
            if node < 0:
                break
            if reached >= 0:
                best, value = length, reached
        return best, value

    def _step(self, node: int, letter: str) -> tuple[int, int]:
        """The node after a letter, -1 where there is none, and the value that it has, if any."""
        key = (node, letter)
        if key not in self._steps:
            self._steps[key] = self._walk(node, letter.encode("utf-8", "surrogatepass"))
        return self._steps[key]

    def _walk(self, node: int, letter: bytes) -> tuple[int, int]:
        units = self._units
        unit = units[node]
        for byte in letter:
            node ^= _offset(unit) ^ byte
            if node >= len(units):
                return -1, -1
            unit = units[node]
            if unit & (LEAF | 0xFF) != byte:
                return -1, -1
        if not unit >> 8 & 1:
            return node, -1
        place = node ^ _offset(unit)
        return node, units[place] & (LEAF - 1) if place < len(units) else -1

    def _replacement(self, value: int) -> str:
        return self._texts[value : self._texts.index(b"\0", value)].decode("utf-8", "replace")


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)
