"""Count the profiles of language identification in the Declaration of Human Rights, or measure it.

transduce corpus get udhr
python tools/make_language_profiles.py FOLDER                   # the folder of that corpus
python tools/make_language_profiles.py --measure en=test.en de=test.de

Measured is on each line of the files, and on its first three words: the share that is detected
right, among the given languages and among all.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

from transduce.data.languages.detect import PROFILES, Detector, read_profiles, write_profiles

VERSIONS = """
af=afr ar=arb az=azj_latn be=bel bg=bul bn=ben ca=cat cs=ces cy=cym da=dan de=deu_1996
el=ell_monotonic en=eng eo=epo es=spa et=est eu=eus fa=pes_1 fi=fin fr=fra ga=gle gl=glg he=heb
hi=hin hr=hrv hu=hun hy=hye id=ind is=isl it=ita ja=jpn ka=kat kk=kaz ko=kor ky=kir la=lat lt=lit
lv=lav mk=mkd mr=mar mt=mlt nb=nob nl=nld pl=pol pt=por_BR,por_PT ro=ron_2006 ru=rus sk=slk sl=slv
sr=srp_cyrl,srp_latn sv=swe sw=swh ta=tam te=tel th=tha tl=tgl tr=tur uk=ukr ur=urd uz=uzn_latn
vi=vie zh=cmn_hans,cmn_hant zu=zul
"""
ABOUT = (
    "The most frequent character n-grams of languages, in order; counted in the Universal "
    "Declaration of Human Rights (free of copyright) by tools/make_language_profiles.py"
)


def make(folder: Path) -> None:
    columns: dict[str, list[str]] = {}
    for split in ("train", "valid", "test"):
        header, *rows = [
            line.split("\t") for line in (folder / f"{split}.tsv").read_text("utf-8").splitlines()
        ]
        for place, version in enumerate(header):
            columns.setdefault(version, []).extend(row[place] for row in rows)
    chosen = dict(entry.split("=") for entry in VERSIONS.split())
    texts = {
        code: [text for version in versions.split(",") for text in columns[version]]
        for code, versions in chosen.items()
    }
    write_profiles(texts, PROFILES, ABOUT)
    print(f"{len(texts)} languages in {PROFILES}")


def measure(files: dict[str, Path]) -> None:
    every = Detector([code for code, _ in read_profiles()])
    few = Detector(files)
    for code, path in files.items():
        contents = path.read_bytes()
        text = (gzip.decompress(contents) if path.suffix == ".gz" else contents).decode("utf-8")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        for what, texts in (
            ("lines", lines),
            ("three words", [" ".join(line.split()[:3]) for line in lines]),
        ):
            shares = [
                sum(detector.detect(text)[0].language == code for text in texts) / len(texts)
                for detector in (few, every)
            ]
            print(
                f"{code}: {what}: {100 * shares[0]:.1f} % right among {len(files)} languages, "
                f"{100 * shares[1]:.1f} % among {len(every.languages)}"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure({c: Path(p) for c, p in (entry.split("=", 1) for entry in sys.argv[2:])})
    elif len(sys.argv) == 2:
        make(Path(sys.argv[1]))
    else:
        sys.exit(__doc__)
