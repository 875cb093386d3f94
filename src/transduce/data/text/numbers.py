"""Numbers in digits as English words."""

from __future__ import annotations

import re

NUMBER = re.compile(
    r"(?<![\w.,])(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<part>\d+)|(?P<ordinal>st|nd|rd|th)\b)?"
    r"(?![\w])",
    re.ASCII,
)
SMALL = [
    *("zero", "one", "two", "three", "four"),
    *("five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen"),
    *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
THOUSANDS = ["", "thousand", "million", "billion", "trillion"]
MAX_DIGITS = 3 * len(THOUSANDS)  # longer numbers are read digit by digit
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}


def numbers_in_words(text: str) -> str:
    """Digits as English words: 21 is twenty one, 3.5 three point five, 3rd third."""
    return NUMBER.sub(_in_words, text)


def _in_words(found: re.Match[str]) -> str:
    digits = found["whole"].replace(",", "")
    if len(digits) > MAX_DIGITS or (len(digits) > 1 and digits[0] == "0"):
        words = [SMALL[int(digit)] for digit in digits]
    else:
        words = _cardinal(int(digits))
    if found["part"]:
        words += ["point", *(SMALL[int(digit)] for digit in found["part"])]
    if found["ordinal"]:
        words[-1] = _ordinal(words[-1])
    return " ".join(words)


def _cardinal(number: int) -> list[str]:
    if number < 1000:
        return _below_thousand(number) or ["zero"]
    words: list[str] = []
    for place in range(len(THOUSANDS) - 1, -1, -1):
        group = number // 1000**place % 1000
        if group:
            words += [*_below_thousand(group), *THOUSANDS[place].split()]
    return words


def _below_thousand(number: int) -> list[str]:
    words = [SMALL[number // 100], "hundred"] if number >= 100 else []
    rest = number % 100
    if rest >= 20:
        words.append(TENS[rest // 10 - 2])
        rest %= 10
    return [*words, SMALL[rest]] if rest else words


def _ordinal(word: str) -> str:
    if word in ORDINALS:
        return ORDINALS[word]
    return f"{word.removesuffix('y')}ieth" if word.endswith("y") else f"{word}th"
