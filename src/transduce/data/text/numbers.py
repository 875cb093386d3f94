"""English numbers: digits as words, and one reading of each number in words."""

from __future__ import annotations

import re

NUMBER = re.compile(
    r"(?<![\w.,])(?P<whole>\d{1,3}(?:,\d{3})+|\d+)"
    r"(?:\.(?P<part>\d+)|(?P<ordinal>st|nd|rd|th)\b|(?P<plural>['’]?s)\b)?"
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

GAP = r"(?:\s+|-)"
ONES = "|".join(SMALL[1:10])
BELOW_HUNDRED = rf"(?:(?:{'|'.join(TENS)})(?:{GAP}(?:{ONES}))?|{'|'.join(SMALL[10:])})"
SCALES = "hundred|" + "|".join(THOUSANDS[1:])
JOINED = re.compile(rf"\b({'|'.join(TENS)})-(?={ONES}|first|second|third)", re.I)
ADDED = re.compile(
    rf"\b({SCALES}){GAP}and{GAP}(?=(?:{'|'.join([*SMALL, *TENS])})\b(?!{GAP}(?:{SCALES})\b))", re.I
)
YEAR = re.compile(
    rf"\b(?P<century>{'|'.join(SMALL[10:])}|twenty){GAP}"
    rf"(?:hundred\b(?:{GAP}(?P<after>{BELOW_HUNDRED}|{ONES})\b)?|(?P<hundreds>hundreds)\b"
    rf"|(?:oh|o|zero){GAP}(?P<one>{ONES})\b"
    rf"|(?P<decade>{'|'.join(ten[:-1] + 'ies' for ten in TENS)})\b|(?P<rest>{BELOW_HUNDRED})\b)"
    rf"(?!{GAP}(?:{SCALES})\b)",
    re.I,
)


def numbers_in_words(text: str) -> str:
    """Digits as English words: 21 is twenty one, 3.5 three point five, 3rd third, 80s eighties."""
    return NUMBER.sub(_in_words, text)


def one_reading(text: str) -> str:
    """English numbers in words, read as they are counted: nineteen eighty four is one thousand
    nine hundred eighty four, one hundred and five one hundred five, twenty-one twenty one."""
    return YEAR.sub(_counted, ADDED.sub(r"\1 ", JOINED.sub(r"\1 ", text)))


def _counted(year: re.Match[str]) -> str:
    """From ten hundred to twenty ninety nine."""
    century = year["century"].lower()
    words = _cardinal(100 * (20 if century == "twenty" else SMALL.index(century)))
    rest = year["after"] or year["one"] or year["decade"] or year["rest"]
    if year["hundreds"]:
        words[-1] += "s"
    return " ".join([*words, *(re.split(GAP, rest) if rest else [])])


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
    if found["plural"]:
        words[-1] = f"{words[-1][:-1]}ies" if words[-1].endswith("y") else f"{words[-1]}s"
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
