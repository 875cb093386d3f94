"""g2p-en: English spelling to ARPAbet phones, a GRU encoder-decoder without attention.

https://github.com/Kyubyong/g2p. The network of the package alone: its dictionaries, which it asks
first, its numbers and homographs are not part of it.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from transduce import recipe
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError
from transduce.interop.imports.weights import Weights, arrange, create_model, fill, imported_recipe
from transduce.models.decoders import RecurrentDecoder
from transduce.models.encoders import RecurrentEncoder
from transduce.nn.recurrent.cells import GRU
from transduce.nn.recurrent.stack import Recurrent
from transduce.tasks.transduce import Transducer

NAME = "g2p-en"
FILE = "checkpoint20.npz"
LARGEST = 64 << 20  # bytes of one array
CELL = ("w_ih", "w_hh", "b_ih", "b_hh")  # in the order of torch
NAMES = frozenset(
    [f"{side}_{part}" for side in ("enc", "dec") for part in ("emb", *CELL)] + ["fc_w", "fc_b"]
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL_LETTERS = ("<pad>", "<unk>", "</s>")
VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
LONGEST = 20  # phones of a word


def phones() -> list[str]:
    """In the order of its rows: ARPAbet by the alphabet, each vowel with its three stresses."""
    stressed = [f"{vowel}{stress}" for vowel in VOWELS.split() for stress in range(3)]
    return sorted([*stressed, *CONSONANTS.split(), "UW"])


def recognises(source: Path) -> bool:
    path = _file(source)
    if path is None:
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()} >= NAMES
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def read(source: Path) -> Transducer:
    """The model. Raises ModelError where the file is damaged, or another network."""
    path = _file(source)
    if path is None:
        raise ModelError(f"{source} has no {FILE}")
    weights = Weights(_read_arrays(path), path)
    spelling = arrange([*SPECIAL_LETTERS, *LETTERS], ("<pad>", "<unk>", None, "</s>"))
    letters = recipe.Tokens(level="character", lowercase=True)
    source_tokens = Tokens.of_vocabulary(letters, spelling.names)
    target_tokens = Tokens.of_vocabulary(recipe.Tokens(level="symbol"), phones())
    width = weights["enc_emb"].shape[-1]
    part = {"kind": "recurrent", "cell": "gru", "layers": 1}
    settings = imported_recipe(
        "g2p-en",
        {
            "width": width,
            "tie_embeddings": "none",
            "encoder": part | {"bidirectional": False},
            "decoder": part | {"attention": "none"},
        },
        (source_tokens, target_tokens),
        decode={"beam": 1, "max_ratio": 1e-6, "max_extra": LONGEST + 1},
        metrics=["per", "exact"],
    )
    model = create_model(settings, (source_tokens, target_tokens), weights.size, path)
    assert isinstance(model, Transducer)
    network, decoder = model.network, model.network.decoder
    assert isinstance(network.encoder, RecurrentEncoder)
    assert isinstance(decoder, RecurrentDecoder)
    table_VD = weights["enc_emb"]
    if len(table_VD) != spelling.size:
        raise ModelError(f"{path} has {len(table_VD)} letters instead of {spelling.size}")
    # Ours are multiplied by the square root of the width.
    scale = network.front.scale
    fill(network.front.table.weight, spelling.embeddings(table_VD) / scale, f"{path}: enc_emb")
    fill(decoder.embedding.table.weight, weights["dec_emb"] / scale, f"{path}: dec_emb")
    _fill_cell(network.encoder.recurrent, weights, "enc")
    _fill_cell(decoder.recurrent, weights, "dec")
    fill(network.head.weight, weights["fc_w"], f"{path}: fc_w")
    fill(network.head.bias, weights["fc_b"], f"{path}: fc_b")
    weights.check_all_used()
    model.imported = {"format": "g2p-en"}
    network.eval()
    return model


def _fill_cell(stack: Recurrent, weights: Weights, side: str) -> None:
    cell = stack.cells[0]
    assert isinstance(cell, GRU)
    for parameter, name in zip(cell.weights(), CELL, strict=True):
        fill(parameter, weights[f"{side}_{name}"], f"g2p-en: {side}_{name}")


def _file(source: Path) -> Path | None:
    """The file itself, or in the folder of the package."""
    if source.suffix == ".npz" and source.is_file():
        return source
    return next((p for p in (source / FILE, source / "g2p_en" / FILE) if p.is_file()), None)


def _read_arrays(path: Path) -> dict[str, Tensor]:
    try:
        with zipfile.ZipFile(path) as archive:
            largest = max((one.file_size for one in archive.infolist()), default=0)
        if largest > LARGEST:
            raise ModelError(f"{path} has an array of {largest:,} bytes: it is not g2p-en's")
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: np.asarray(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"{path} is damaged ({error}); install g2p-en again") from None
    if not all(array.dtype == np.float32 for array in found.values()):
        raise ModelError(f"{path} has other arrays than of float32: it is not g2p-en's")
    return {name: torch.from_numpy(array) for name, array in found.items()}
