"""Word groups of espeak ("was the"): which phones of a group belong to which word.

espeak gives the start of a group, not of its words. Each word is pronounced by itself, and the
group's phones are split where the parts are most similar to the words: the minimum edit distance.
"""

from __future__ import annotations

from collections.abc import Sequence

VOWELS = frozenset("aeiouyɑɐɒæəɘɵɞɛɜɝɚɨɪɔœøɶʉʊʌɯɤ")
# cost of substituting a vowel by a vowel, as in "the" before a vowel, or a consonant by a consonant
SAME_KIND = 0.6
GAP = 1.0


def assign_to_words(spoken: Sequence[str], words: Sequence[Sequence[str]]) -> list[int]:
    """The index of the word of each spoken phone, from 0.

    `words` are the phones of each word by itself. Words without phones get none; each of the others
    gets at least one, as long as there are enough.
    """
    sounding = [number for number, phones in enumerate(words) if phones]
    if not sounding or not spoken:
        return [0] * len(spoken)
    minimum = 1 if len(spoken) >= len(sounding) else 0
    count = len(spoken)
    # best[e]: the cost of the words so far with spoken[:e], and where each of them begins.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for number in sounding:
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (cost, starts) in best.items():
            distances = _distances(words[number], spoken[start:])
            for size in range(minimum, count - start + 1):
                total = cost + distances[size]
                if start + size not in following or total < following[start + size][0]:
                    following[start + size] = (total, (*starts, start))
        best = following
    _, starts = best[count]
    owners = [sounding[0]] * count
    for number, start in zip(sounding, starts, strict=True):
        owners[start:] = [number] * (count - start)
    return owners


def _distances(word: Sequence[str], spoken: Sequence[str]) -> list[float]:
    """The edit distance of a word's phones to spoken[:0], spoken[:1], … spoken[:n]."""
    row = [GAP * size for size in range(len(spoken) + 1)]
    for phone in word:
        above, row = row, [row[0] + GAP]
        for place, other in enumerate(spoken):
            row.append(
                min(above[place] + _exchange(phone, other), above[place + 1] + GAP, row[-1] + GAP)
            )
    return row


def _exchange(one: str, other: str) -> float:
    if one == other:
        return 0.0
    return SAME_KIND if _is_vowel(one) == _is_vowel(other) else 2 * GAP


def _is_vowel(phone: str) -> bool:
    return bool(phone) and phone[0] in VOWELS
