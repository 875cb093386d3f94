"""Command-line actions for aligning recordings with their texts, and their output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from transduce.alignment.align import (
    Aligned,
    Line,
    Utterance,
    align_recording,
    read_text,
    spell,
    strange_phones,
)
from transduce.alignment.by_transcript import align_by_transcript
from transduce.alignment.output_files import (
    MANIFEST,
    files_of,
    manifest_rows,
    table,
    write_alignment,
)
from transduce.corpora.speech import ALL, UDHR_SPOKEN
from transduce.corpora.udhr import SPLITS, read_version, version_codes
from transduce.data.audio.intervals import numbered_lines, read_textgrid
from transduce.data.audio.read import audio_info, check_audible
from transduce.errors import DataError, ModelError
from transduce.hardware import pick_device
from transduce.recipe import Named
from transduce.storage import check_free, write_text
from transduce.synthesis.declaration import cut
from transduce.tasks.speech import SpeechModel
from transduce.tasks.transduce import load
from transduce.terminal import say

MIN_CONFIDENCE = 0.3  # lowest confidence of segments in a corpus
SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".sph")


def align_and_print(
    audio: Path,
    text: Path,
    model: Path | None,
    grid: Path | None,
    language: str | None,
    to: Path | None,
    min_confidence: float,
    device: str,
    overwrite: bool = False,
    tags: Sequence[str] = (),
) -> None:
    """Align one recording with its text, by a model or from a TextGrid."""
    if (model is None) == (grid is None):
        raise DataError(
            "name a --model that aligns, or --textgrid FILE with a tier seg; one of them"
        )
    folder = to or audio.with_suffix("")
    check_free(files_of(folder, audio), overwrite)
    texts = read_text(text)
    if grid is not None:
        aligned = alignment_from_textgrid(audio, texts, grid)
    else:
        assert model is not None
        aligned = align_with(_load_speech_model(model, device), audio, texts, language, tags)
    write_alignment(aligned, folder, min_confidence)
    _print_summary(aligned, folder)


def align_with(
    model: SpeechModel,
    audio: Path,
    texts: Sequence[str],
    language: str | None = None,
    tags: Sequence[str] = (),
) -> Aligned:
    """Align a recording with its lines, by CTC where the model has it, else by a transcript.
    Raises DataError if the recording is truncated, damaged or silent."""
    check_audible(audio)
    if model.network.ctc is None:
        return align_by_transcript(model, audio, texts, tags, language)
    if language is None and strange_phones(model, texts):
        language = _learnt_language(model)
    lines = spell(model, texts, language)
    _warn_about_unknown(lines)
    return align_recording(model, audio, lines, tags)


def _learnt_language(model: SpeechModel) -> str | None:
    """The language of a phone model, if its recipe names one; printed, as it was not asked for."""
    corpus = model.recipe.data.train
    if not isinstance(corpus, Named) or corpus.name != UDHR_SPOKEN.name:
        return None
    if corpus.language in (None, ALL):
        return None
    try:
        tag = read_version(str(corpus.language)).tag
    except DataError:  # the Declaration's texts are not on this machine
        return None
    say(f"assuming that the text is {tag}, the language of the model")
    return tag


def _warn_about_unknown(lines: Sequence[Line]) -> None:
    """Warn about out-of-vocabulary words."""
    unknown = [word for line in lines for word in line.unknown]
    if unknown:
        noun = "word has" if len(unknown) == 1 else "words have"
        shown = ", ".join(list(dict.fromkeys(unknown))[:10])
        say(
            f"{len(unknown):,} {noun} no character of the model's vocabulary, and no "
            f"interval in the alignment ({shown}{', …' if len(set(unknown)) > 10 else ''}): "
            f"write them as they are spoken"
        )


def alignment_from_textgrid(audio: Path, texts: Sequence[str], grid: Path) -> Aligned:
    """An alignment from a TextGrid whose tier `seg` has line numbers; a line may occur twice."""
    seconds = audio_info(audio).seconds
    found = [
        Utterance(number, one.text, one.start, min(one.end, seconds), confidence=1.0)
        for number, one in numbered_lines(read_textgrid(grid), texts, str(grid))
    ]
    there = {one.number for one in found}
    unread = [Utterance(n, t) for n, t in enumerate(texts, 1) if t and n not in there]
    return Aligned(audio, seconds, (*found, *unread))


def align_declarations(
    audio: Path, model: Path | None, to: Path | None, device: str, overwrite: bool = False
) -> None:
    """Align recordings of the Declaration in a folder, named by language, and make a corpus."""
    if model is None:
        raise ModelError("give a --model with CTC to align the recordings")
    recordings = list(_recordings(audio))
    folder = to or audio / "aligned"
    check_free((folder / f"{split}.tsv" for split in SPLITS), overwrite)
    for path, _ in recordings:
        check_free(files_of(folder / path.stem, path), overwrite)
    speech_model = _load_speech_model(model, device)
    tables: dict[str, list[list[str]]] = {split: [] for split in SPLITS}
    for path, code in recordings:
        version = read_version(code)
        lines = list(cut(version))
        spelt = spell(speech_model, [line.text for line in lines], version.tag)
        aligned = align_recording(speech_model, path, spelt)
        write_alignment(aligned, folder / path.stem, MIN_CONFIDENCE)
        _print_summary(aligned, folder / path.stem)
        for row in manifest_rows(aligned, folder, MIN_CONFIDENCE):
            line = lines[int(row[-1]) - 1]
            tables[line.split].append([*row, code, path.stem, line.segment])
    for split, rows in tables.items():
        head = [*MANIFEST, "language", "voice", "segment"]
        write_text(folder / f"{split}.tsv", table([head, *rows]))
    counts = ", ".join(f"{split} {len(rows):,}" for split, rows in tables.items())
    print(f"In {folder}: {counts} utterances. In a recipe: train: {{file: {folder / 'train.tsv'},")
    print("  audio: audio, start: start, end: end, target: phones}")


def _recordings(folder: Path) -> Iterator[tuple[Path, str]]:
    """Audio files, each with the longest language code that its name begins with."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; name the one that holds the recordings")
    codes = version_codes()
    sounds = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not sounds:
        raise DataError(f"{folder} holds no audio files; their names begin with a code: eng-1.mp3")
    for path in sounds:
        fitting = [c for c in codes if path.stem == c or path.stem.startswith((f"{c}-", f"{c}_"))]
        if not fitting:
            raise DataError(
                f"{path} is not named by its language: begin its name with a code of corpus udhr, "
                f"as in eng-1{path.suffix}"
            )
        yield path, max(fitting, key=len)


def _load_speech_model(folder: Path, device: str) -> SpeechModel:
    model = load(folder, str(pick_device(device)), members=False)
    if not isinstance(model, SpeechModel):
        raise ModelError(f"{folder} is not a speech model: align needs one")
    return model


def _print_summary(aligned: Aligned, folder: Path) -> None:
    uncertain = aligned.uncertain
    missing = [one.number for one in aligned.utterances if not one.read and one.text.strip()]
    unread = [str(number) for number in missing if number not in uncertain]
    lines = len({one.number for one in aligned.read})
    print(
        f"{aligned.audio}: {lines:,} lines read in {aligned.seconds:.0f} s, median confidence "
        f"{aligned.median_confidence:.2f}; {folder}"
    )
    if unread:
        more = ", …" if len(unread) > 20 else ""
        print(f"  not read: line {', '.join(unread[:20])}{more}")
    if uncertain:
        places = [f"{n} ({start:.1f}-{end:.1f} s)" for n, (start, end) in uncertain.items()]
        more = ", …" if len(places) > 20 else ""
        print(
            f"  uncertain, as something else was heard there: line {', '.join(places[:20])}{more}"
        )
    if aligned.untold:
        spans = [f"{start:.1f}-{end:.1f}" for start, end in aligned.untold]
        more = ", …" if len(spans) > 20 else ""
        print(f"  speech or other sound without text: {', '.join(spans[:20])}{more} s")
    if aligned.warning:
        say(f"warning: {aligned.warning}")
