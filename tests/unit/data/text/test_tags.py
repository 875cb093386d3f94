"""Tags before a source: one token each, never text, whatever the level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from transduce import recipe
from transduce.data.cache.tokenised import encode_corpus
from transduce.data.text.pairs import (
    Pair,
    ReadingCounts,
    always_tagged,
    check_files,
    corpus_name,
    read_pairs,
    tags_of,
)
from transduce.data.text.tags import known_tags, parts_of, split_tags, with_tags, without_tags
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError, RecipeError, TokensError
from transduce.recipe import (
    Columns,
    Corpus,
    Mixture,
    Named,
    ParallelFiles,
    Recipe,
    Recordings,
    parse_recipe,
)

TEXTS = ["bonjour <fre> monde", "salut"] * 5
LEVELS = ["character", "subword", "word", "symbol", "byte"]


def test_there_and_back() -> None:
    tagged = with_tags("bonjour", ["fre", "formal"])
    assert tagged == "<fre> <formal> bonjour"
    assert without_tags(tagged, {"fre", "formal"}) == (["fre", "formal"], "bonjour")
    assert without_tags(tagged, {"fre"}) == (["fre"], "<formal> bonjour")
    assert without_tags("a <fre> b", {"fre"}) == ([], "a <fre> b")


def test_unknown_tags_are_read_as_one_tag_where_it_is_known() -> None:
    known = {"V", "PST", "?"}
    assert without_tags("<V> <NFIN> juosta", known) == (["V", "?"], "juosta")
    assert without_tags("<V;NFIN;PST> juosta", known) == (["V", "?", "PST"], "juosta")
    assert without_tags("juosta <NFIN>", known) == ([], "juosta <NFIN>")
    assert without_tags("<NFIN> juosta", known - {"?"}) == ([], "<NFIN> juosta")


def test_joint_tags_are_read_as_their_parts_where_these_are_known() -> None:
    assert parts_of("IN+ESS") == ["IN", "ESS"]
    for whole in ("C++", "+N", "A(B+C)", "PL"):
        assert parts_of(whole) == [whole]
    parts = {"N", "IN", "ESS", "AT"}
    assert without_tags("<N> <AT+ESS> ház", parts) == (["N", "AT", "ESS"], "ház")
    assert without_tags("<N;AT+ESS> ház", parts) == (["N", "AT", "ESS"], "ház")
    # What training had as one tag stays one, and so does an unknown one of which no part is known.
    assert without_tags("<AT+ESS> ház", {*parts, "AT+ESS"}) == (["AT+ESS"], "ház")
    assert without_tags("<AT+ABL> ház", parts) == ([], "<AT+ABL> ház")
    assert without_tags("<AT+ABL> ház", {*parts, "?"}) == (["AT", "?"], "ház")
    assert without_tags("<ON+ABL> ház", {*parts, "?"}) == (["?"], "ház")


def test_brackets_of_two_kinds_do_not_close_each_other() -> None:
    assert split_tags("N;A(B;C);D") == ["N", "A(B;C)", "D"]
    assert split_tags("N;A(B;C];D") == ["N", "A(B", "C]", "D"]


def test_a_tag_that_is_known_as_a_whole_is_not_split() -> None:
    assert known_tags("N;V", {"N;V", "N", "V"}) == ["N;V"]
    assert known_tags("N;V", {"N", "V"}) == ["N", "V"]
    assert known_tags("A(B;C)", {"A(B", "C)"}) == ["A(B", "C)"]  # of an earlier version
    assert known_tags("N;V", {"N"}) is None


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_tag_is_one_token_at_the_beginning_and_text_elsewhere(
    level: str, algorithm: str, tmp_path: Path
) -> None:
    settings = recipe.Tokens(level=level, algorithm=algorithm, size=300)
    # A symbol that is spelt like a tag would be that tag.
    texts = [text.replace("<fre>", "<") for text in TEXTS] if level == "symbol" else TEXTS
    plain = Tokens.train(settings, texts)
    made = Tokens.train(settings, texts, ["fre", "dut"])
    made.save(tmp_path / "tokens.json")
    for tokens in (made, Tokens.load(tmp_path / "tokens.json")):
        assert list(tokens.tags) == ["dut", "fre"]
        assert len(tokens) == len(plain) + 2
        ids = tokens.encode("<fre> bonjour <fre> monde")
        assert ids[0] == tokens.tags["fre"]
        assert ids[1:] == plain.encode("bonjour <fre> monde")
        assert tokens.encode("<fre>bonjour <fre> monde") == ids
        assert tokens.encode("<dut> <fre> salut")[:2] == list(tokens.tags.values())
        assert tokens.pieces(ids)[0] == "<fre>"
        assert tokens.decode(ids) == plain.decode(ids[1:])
        assert not tokens.unknowns(["<fre> bonjour"])
    assert plain.tags == {}


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def sources(corpus: Corpus) -> list[str]:
    return [pair.source for pair in read_pairs(corpus, None)]


def test_a_list_of_corpora_takes_turns(tmp_path: Path) -> None:
    one = Columns(file=write(tmp_path, "one.tsv", "a\tA\nb\tB\nc\tC\n"), tag="x")
    other = Columns(file=write(tmp_path, "other.tsv", "d\tD\n\tE\n"), tag="y")
    bare = Columns(file=one.file, limit=1)
    mixture = Mixture(of=[one, other, bare])
    counts = ReadingCounts()
    pairs = list(read_pairs(mixture, None, counts))
    assert [pair.source for pair in pairs] == ["<x> a", "<y> d", "a", "<x> b", "<x> c"]
    assert pairs[0] == Pair("<x> a", "A", one.file, 1, ("x",))
    assert (counts.pairs, counts.empty_source) == (5, 1)
    assert sources(mixture.model_copy(update={"limit": 2})) == ["<x> a", "<y> d"]
    assert tags_of(mixture, None) == ["x", "y"]
    assert tags_of(mixture.model_copy(update={"limit": 1}), None) == ["x"]
    empty = Columns(file=write(tmp_path, "empty.tsv", "\tE\n"), tag="z")
    assert tags_of(Mixture(of=[one, empty]), None) == ["x"]
    assert corpus_name(mixture) == f"{one.file}, {other.file}"
    check_files(mixture, None)
    with pytest.raises(DataError, match="there is no file"):
        check_files(Mixture(of=[one, Columns(file="nothing.tsv")]), None)


@pytest.mark.parametrize(
    "sides",
    [
        {},
        {"source": "lemma"},
        {"target": "form"},
        {"source": "lemma", "target": "form"},
        {"source": 0, "target": "form"},
    ],
)
@pytest.mark.parametrize("tags", ["features", 2])
def test_a_header_is_seen_once_for_all_columns(
    sides: dict[str, Any], tags: str | int, tmp_path: Path
) -> None:
    rows = "sing\tsang\tV;PST\ngo\tgoes\tV;PRS\nbe\twas\tV;3\n"
    named = any(isinstance(column, str) for column in (*sides.values(), tags))
    header = "lemma\tform\tfeatures\n" if named else ""
    corpus = Columns(file=write(tmp_path, "forms.tsv", header + rows), tags=tags, **sides)
    pairs = list(read_pairs(corpus, None))
    assert [(pair.source, pair.target, pair.tags) for pair in pairs] == [
        ("<V> <PST> sing", "sang", ("V", "PST")),
        ("<V> <PRS> go", "goes", ("V", "PRS")),
        ("<V> <3> be", "was", ("V", "3")),
    ]
    assert [pair.line for pair in pairs] == ([2, 3, 4] if named else [1, 2, 3])


def test_tags_of_several_files_and_skipped_rows_stay_with_their_rows(tmp_path: Path) -> None:
    head = "lemma\tform\tfeatures\n"
    files = [
        write(tmp_path, "a.tsv", head + "a\tA\t1\n\tB\t2\nc\tC\t3\n"),
        write(tmp_path, "b.tsv", head + "d\t\t4\ne\tE\t5\n"),
    ]
    pairs = list(read_pairs(Columns(file=files, tags="features"), None))
    assert [(pair.source, pair.target) for pair in pairs] == [
        ("<1> a", "A"),
        ("<3> c", "C"),
        ("<5> e", "E"),
    ]


def test_tags_of_jsonl_have_a_name(tmp_path: Path) -> None:
    line = '{"source": "go", "target": "goes", "t": "V"}\n'
    file = write(tmp_path, "forms.jsonl", line)
    assert sources(Columns(file=file, tags="t")) == ["<V> go"]
    with pytest.raises(DataError, match="only TSV and CSV have numbered columns; give its name"):
        sources(Columns(file=file, tags=2))


def test_a_column_of_tags(tmp_path: Path) -> None:
    file = write(tmp_path, "forms.tsv", "sing\tsang\tV;PST\nsing\tsings\tV|PRS 3\nx\ty\t\n")
    corpus = Columns(file=file, tags=2)
    assert sources(corpus) == ["<V> <PST> sing", "<V> <PRS> <3> sing", "x"]
    tagged = corpus.model_copy(update={"tag": "eng"})
    assert sources(tagged)[2] == "<eng> x"
    assert tags_of(tagged, None) == ["3", "PRS", "PST", "V", "eng"]
    jsonl = write(tmp_path, "a.jsonl", '{"source": "a", "target": "b", "features": "N"}\n')
    assert sources(Columns(file=jsonl, tags="features")) == ["<N> a"]
    bad = write(tmp_path, "bad.tsv", "a\tb\t<V>\n")
    with pytest.raises(DataError, match=r"bad.tsv:1: the tag is '<V>'; it must be one word"):
        sources(Columns(file=bad, tags=2))


def data_of(train: Any, **keys: Any) -> recipe.Data:
    level = {"level": "character"}
    tokens = {"source": level, "target": level}
    values = {"train": train, "valid": train, "tokens": tokens, **keys}
    return Recipe.model_validate({"data": values}).data


def test_tokens_and_ids_of_a_tagged_corpus(tmp_path: Path) -> None:
    one = {"file": write(tmp_path, "one.tsv", "a\tb\n"), "tag": "x"}
    other = {"file": write(tmp_path, "other.tsv", "<x>\tb\n"), "tag": "y"}
    data = data_of([one, other])
    source, target = train_tokens(data)
    assert (list(source.tags), target.tags) == (["x", "y"], {})
    assert "t" not in source.names()  # no letter of a tag is a letter of the text
    encoded, _ = encode_corpus(data.train, data, source, target, tmp_path / "cache")
    again, _ = encode_corpus(data.train, data, source, target, tmp_path / "cache")
    assert encoded.source(0).tolist() == [source.tags["x"], *source.encode("a")]
    # What looks like a tag of the model at the beginning of a text is one.
    assert encoded.source(1).tolist() == [source.tags["y"], source.tags["x"]]
    assert again.source_ids.tolist() == encoded.source_ids.tolist()
    changed = data_of([one, {**other, "tag": "x"}])
    different, _ = encode_corpus(changed.train, changed, source, target, tmp_path / "cache")
    assert different.source_ids.tolist() != encoded.source_ids.tolist()
    write(tmp_path, "other.tsv", "aa\tb\n")
    anew, _ = encode_corpus(data.train, data, source, target, tmp_path / "cache")
    assert anew.source(1).tolist() == [source.tags["y"], *source.encode("aa")]


def test_a_tokens_file_must_know_the_tags(tmp_path: Path) -> None:
    file = str(tmp_path / "tokens.json")
    Tokens.train(recipe.Tokens(level="character"), ["ab"], ["x"]).save(file)
    corpus = {"file": write(tmp_path, "one.tsv", "a\tb\n")}
    both = {"both": {"file": file}}
    assert train_tokens(data_of({**corpus, "tag": "x"}, tokens=both))[0].tags
    with pytest.raises(TokensError, match="has no tag <y>; train the tokens again"):
        train_tokens(data_of({**corpus, "tag": "y"}, tokens=both))
    with pytest.raises(TokensError, match=r"has no tag <\?>.* or leave out data.unknown_tags"):
        train_tokens(data_of({**corpus, "tag": "x"}, tokens=both, unknown_tags=0.1))


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        ("{file: a.tsv, tag: a b}", "data.train.tag is 'a b'; it must be one word without < and >"),
        ("{file: a.tsv, tag: s}", "data.train.tag is s, the name of a special token"),
        ("[{file: a.tsv, tga: x}]", "unknown key data.train.of.0.tga; did you mean"),
        ("[{fil: a.tsv}]", "the key data.train.of.0.source is missing"),
        ("[]", "data.train.of"),
        ("[3]", "data.train.of"),
    ],
)
def test_mistakes_are_reported_in_a_sentence(corpus: str, said: str) -> None:
    text = f"data:\n  train: {corpus}\n  valid: {{name: copy, split: valid}}\n"
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "my.yaml", Path())
    assert said in str(caught.value)
    assert "my.yaml:2: " in str(caught.value)


def test_a_tagger_has_no_place_for_tags() -> None:
    text = "task: tag\ndata: {train: {file: a.tsv, tag: x}, valid: {file: a.tsv}}\n"
    with pytest.raises(RecipeError, match="has a tag before each source, but task: tag"):
        parse_recipe(text, "my.yaml", Path())


FEATURES = "N;ABL(PL;PSS(2,PL))"


@pytest.mark.parametrize(
    ("cell", "tags"),
    [
        (FEATURES, ["N", "ABL(PL;PSS(2,PL))"]),
        ("V;PST;3", ["V", "PST", "3"]),
        ("V|PST 3", ["V", "PST", "3"]),
        ("N;[a|b];{c;(d)}", ["N", "[a|b]", "{c;(d)}"]),
        ("A(B; C);D", ["A(B;C)", "D"]),
        ("A(B;C", ["A(B", "C"]),  # a bracket that is not closed keeps nothing together
        ("A)B;C(D", ["A)B", "C(D"]),
        ("A(B];C", ["A(B]", "C"]),
        (";;V; ", ["V"]),
        ("", []),
    ],
)
def test_tags_are_split_outside_of_brackets(cell: str, tags: list[str]) -> None:
    assert split_tags(cell) == tags


def test_features_in_brackets_are_one_tag_in_training_and_in_use(tmp_path: Path) -> None:
    file = write(tmp_path, "forms.tsv", f"ev\tevinizden\t{FEATURES}\ngit\tgitti\tV;PST\n")
    corpus = Columns(file=file, tags=2)
    assert sources(corpus) == ["<N> <ABL(PL;PSS(2,PL))> ev", "<V> <PST> git"]
    tokens = Tokens.train(recipe.Tokens(level="character"), ["evgit"], tags_of(corpus, None))
    apart = tokens.encode("<N> <ABL(PL;PSS(2,PL))> ev")
    assert tokens.encode(f"<{FEATURES}> ev") == apart
    assert len(apart) == 4
    assert tokens.encode(with_tags("ev", [FEATURES])) == apart
    assert tokens.encode(with_tags("git", ["V PST"])) == tokens.encode("<V> <PST> git")
    assert tokens.encode("<N;XXX> ev")[0] not in tokens.tags.values()  # a tag it does not know


def test_tags_of_earlier_models_that_were_cut_in_brackets_are_still_found() -> None:
    known = ["N", "ABL(PL", "PSS(2,PL))"]
    assert without_tags(f"<{FEATURES}> ev", known) == (known, "ev")
    assert without_tags("<N> <ABL(PL;PSS(2,PL))> ev", known) == (known, "ev")


def test_which_corpora_have_tags_before_every_source() -> None:
    plain, tagged = ParallelFiles(source="a", target="b"), Columns(file="a.tsv", tags=2)
    own = ParallelFiles(source="a", target="b", tag="fre")
    assert [always_tagged(one) for one in (plain, tagged, own)] == [False, True, True]
    assert always_tagged(Mixture(of=[tagged, own]))
    assert not always_tagged(Mixture(of=[tagged, plain]))
    assert always_tagged(Named(name="sigmorphon2020", split="train", language="all"))
    assert not always_tagged(Named(name="sigmorphon2020", split="train", language="fre"))


def test_tags_that_a_recipe_gives_are_found_in_the_first_pair(tmp_path: Path) -> None:
    """The rest of a large corpus is not read for them."""
    broken = write(tmp_path, "broken.tsv", "a\tA\nb\n")
    with pytest.raises(DataError, match=r"broken\.tsv:2"):
        sources(Columns(file=broken, tag="x"))
    assert tags_of(Columns(file=broken, tag="x"), None) == ["x"]
    rows = write(tmp_path, "rows.tsv", "a\tA\tV\nb\tB\tN\n")
    of_rows = Columns(file=rows, source=0, target=1, tags=2)
    assert tags_of(Mixture(of=[Columns(file=broken, tag="x"), of_rows]), None) == ["N", "V", "x"]


def test_tags_of_a_column_stand_before_a_recording_once(tmp_path: Path) -> None:
    file = write(tmp_path, "r.tsv", "path\ttext\tkind\na.wav\thi\tV;X\n")
    table = Recordings(file=file, audio="path", target="text", tags="kind", tag="own")
    (pair,) = read_pairs(table, None)
    assert pair.source == f"<own> <V> <X> {tmp_path / 'a.wav'}"
    assert pair.tags == ("own", "V", "X")
