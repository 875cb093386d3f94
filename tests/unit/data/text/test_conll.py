"""CoNLL-U: words are tagged, everything else stays as it stands."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from transduce import recipe
from transduce.data.text.conll import is_conllu, read_sentences
from transduce.data.text.pairs import read_pairs
from transduce.errors import DataError

# Two words of one token (3-4), an empty node (5.1), a form with a space in it, comments.
TEXT = """# sent_id = 1
# text = We can't eat 10 000.
1	We	we	PRON	PRP	_	0	root	_	_
2-3	can't	_	_	_	_	_	_	_	SpaceAfter=No
2	ca	can	AUX	MD	_	1	aux	_	_
3	n't	not	PART	RB	_	1	advmod	_	_
4	10 000	10000	NUM	CD	_	1	obj	_	_
4.1	eaten	eat	VERB	VBN	_	_	_	1:conj	_
5	.	.	PUNCT	.	_	1	punct	_	_

# a comment between two sentences belongs to the second
1	Yes	yes	INTJ	UH	_	0	root	_	_
"""


def lines(text: str = TEXT) -> list[str]:
    return text.split("\n")


def test_words_are_read_and_everything_else_is_kept() -> None:
    first, second = read_sentences(lines(), "a.conllu")
    assert first.column("form") == ["We", "ca", "n't", "10_000", "."]
    assert first.column("upos") == ["PRON", "AUX", "PART", "NUM", "PUNCT"]
    assert first.column("xpos") == ["PRP", "MD", "RB", "CD", "."]
    assert (first.line, second.line) == (1, 11)
    assert second.column("form") == ["Yes"]


def test_writing_back_what_was_read_changes_nothing_but_the_column() -> None:
    sentences = list(read_sentences(lines(), "a.conllu"))
    same = "".join(sentence.filled("upos", sentence.column("upos")) for sentence in sentences)
    assert same == TEXT + "\n"  # the last empty line, which the format wants
    tagged = sentences[0].filled("xpos", ["A", "B", "C", "D", "E"]).split("\n")
    for line, before in zip(tagged[:9], lines()[:9], strict=True):
        fields, old = line.split("\t"), before.split("\t")
        if old[0] in {"1", "2", "3", "4", "5"}:
            assert fields[4] == "ABCDE"[int(old[0]) - 1]
            old[4] = fields[4]
        assert fields == old
    assert sentences[0].filled("upos", ["X"]).split("\n")[4].split("\t")[3] == "_"


@pytest.mark.parametrize(
    ("line", "wrong", "said"),
    [
        (2, "1\tWe\twe", "a.conllu:3: 3 columns instead of the 10 of CoNLL-U"),
        (4, "7\tca\t_\t_\t_\t_\t_\t_\t_\t_", "a.conllu:5: the word has the number 7 where 2 comes"),
        (4, "x\tca\t_\t_\t_\t_\t_\t_\t_\t_", "a.conllu:5: 'x' is not a word number"),
        (4, "2\t\t_\tX\t_\t_\t_\t_\t_\t_", "a.conllu:5: the word has no form"),
    ],
)
def test_a_wrong_line_is_named(line: int, wrong: str, said: str) -> None:
    given = lines()
    given[line] = wrong
    with pytest.raises(DataError) as caught:
        list(read_sentences(given, "a.conllu"))
    assert str(caught.value).startswith(said)


def test_a_word_without_a_tag_is_no_example() -> None:
    given = lines()
    given[5] = given[5].replace("PART", "_")
    (first, _) = read_sentences(given, "a.conllu")
    with pytest.raises(DataError, match=r"a.conllu:6: the word has no upos"):
        first.column("upos")
    assert first.column("feats") == ["_"] * 5  # where nothing to say is something said


def test_a_sentence_has_words() -> None:
    with pytest.raises(DataError, match=r"a.conllu:2: there is no word"):
        list(read_sentences(["", "# nothing", ""], "a.conllu"))


@pytest.mark.parametrize("ending", ["", ".xz"])
def test_a_file_is_a_corpus_of_words_and_tags(tmp_path: Path, ending: str) -> None:
    data = TEXT.encode()
    (tmp_path / f"a.conllu{ending}").write_bytes(lzma.compress(data) if ending else data)
    plain = recipe.Columns(file=f"a.conllu{ending}")
    pairs = list(read_pairs(plain, str(tmp_path)))
    assert [(p.source, p.target, p.line) for p in pairs] == [
        ("We ca n't 10_000 .", "PRON AUX PART NUM PUNCT", 1),
        ("Yes", "INTJ", 11),
    ]
    other = recipe.Columns(file=f"a.conllu{ending}", source="lemma", target="xpos")
    assert next(read_pairs(other, str(tmp_path))).source == "we can not 10000 ."
    wrong = recipe.Columns(file=f"a.conllu{ending}", target="pos")
    with pytest.raises(DataError, match="there is no column pos; there are: id, form"):
        list(read_pairs(wrong, str(tmp_path)))


def test_names_tell() -> None:
    assert all(map(is_conllu, ("a.conllu", "a.conllu.xz", "a.conllu.gz", Path("b/a.conllu"))))
    assert not any(map(is_conllu, ("a.conll", "a.conllu.txt", "conllu")))
