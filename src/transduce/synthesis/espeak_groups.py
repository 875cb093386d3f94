"""Words that espeak says in one group ("was the"): which of the group's phones are whose.

espeak tells where a group begins, not where its words do. Each word is pronounced alone, and the
group's phones are cut where the parts are most like the words: the least edit distance.
"""

from __future__ import annotations

from collections.abc import Sequence

VOWELS = frozenset("aeiouyɑɐɒæəɘɵɞɛɜɝɚɨɪɔœøɶʉʊʌɯɤ")
SAME_KIND = 0.6  # of a vowel for another, as in "the" before a vowel; or of two consonants
GAP = 1.0


def share_out(said: Sequence[str], words: Sequence[Sequence[str]]) -> list[int]:
    """Of each phone that was said, the word it belongs to, from 0.

    `words` are the phones of each word when it is said alone. Words that have none get none; each
    of the others gets at least one, as long as there are enough.
    """
    sounding = [number for number, phones in enumerate(words) if phones]
    if not sounding or not said:
        return [0] * len(said)
    least = 1 if len(said) >= len(sounding) else 0
    count = len(said)
    # best[e]: what the words so far cost with said[:e], and where each of them begins.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for number in sounding:
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (cost, starts) in best.items():
            distances = _distances(words[number], said[start:])
            for size in range(least, count - start + 1):
                total = cost + distances[size]
                if start + size not in following or total < following[start + size][0]:
                    following[start + size] = (total, (*starts, start))
        best = following
    _, starts = best[count]
    owners = [sounding[0]] * count
    for number, start in zip(sounding, starts, strict=True):
        owners[start:] = [number] * (count - start)
    return owners


def _distances(word: Sequence[str], said: Sequence[str]) -> list[float]:
    """The edit distance of a word's phones to said[:0], said[:1], … said[:n]."""
    row = [GAP * size for size in range(len(said) + 1)]
    for phone in word:
        above, row = row, [row[0] + GAP]
        for place, other in enumerate(said):
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
