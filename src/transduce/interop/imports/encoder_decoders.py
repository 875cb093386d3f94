"""Encoder-decoders of Hugging Face: Marian, Pegasus, Blenderbot, BART, mBART, M2M100 and NLLB."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.data.tokens.foreign import tag_of, token_names, with_ids, with_prefix
from transduce.data.tokens.learn import SPECIALS
from transduce.data.tokens.sentencepiece import as_tokenizer, read_sentencepiece
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError
from transduce.interop.huggingface import layout
from transduce.interop.huggingface.ids import Renumbered
from transduce.interop.huggingface.layout import ACTIVATIONS, FAMILIES, Family
from transduce.interop.imports.configuration import (
    MAX_TOKENS,
    Configuration,
    check_vocabulary,
    read_configuration,
    read_json,
)
from transduce.interop.imports.huggingface import model_type, read_config, read_weights
from transduce.interop.imports.tokenizer_file import (
    JSON,
    read_tokenizer_file,
    tokens_of,
    using,
)
from transduce.interop.imports.weights import byte_count, create_model, imported_recipe
from transduce.models.weights import set_weights
from transduce.nn.positions import Sinusoidal
from transduce.recipe import Recipe
from transduce.tasks.model import Model

NAME = "encoder-decoder, of Hugging Face"
BANNED_BIAS = -100.0
"""Added to the bias of rows that are copies: their probability is nothing beside the first's."""
GENERATION = "generation_config.json"
LEFT_OUT = ("dropout", "attention_dropout", "activation_dropout")


def recognises(source: Path) -> bool:
    return model_type(source) in FAMILIES


def read(source: Path) -> Model:
    """The model, with what its export needs again. Raises ModelError, with the reason."""
    config = read_config(source)
    generation = read_configuration(source / GENERATION, optional=True)
    family = FAMILIES[model_type(source)]
    weights = _whole_names(read_weights(source))
    tokens = read_tokens(source, family, config, generation)
    recipe = _recipe(source, family, config, generation, tokens)
    model = create_model(recipe, (tokens.source, tokens.target), byte_count(weights), source)
    used: set[str] = set()
    set_weights(model.network, _parameters(weights, family, config, tokens, used), source)
    model.network.eval()
    rest = {name: tensor for name, tensor in weights.items() if name not in used}
    if family.positions == "learned":
        for side in layout.SIDES:
            name = layout.positions_of(side)[1]
            rest[f"{name}.unused"] = weights[name][: family.offset].clone()
    model.imported = {
        "format": family.type,
        "config": config.values,
        "generation_config": generation.values,
        "ids": tokens.ids.to_json(),
        "target_ids": tokens.target_ids.to_json(),
        "types": {name: str(tensor.dtype)[6:] for name, tensor in weights.items()},
        "languages": tokens.languages,
        "files": tokens.files,
        "tensors": rest,
    }
    return model


def _whole_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """With "model." before names, which checkpoints of a model without its head lack."""
    if any(name.startswith("model.") for name in weights):
        return weights
    raise ModelError(
        "the weights are of a model without an output layer, or of another kind; take the folder "
        "of a model for generation"
    )


# --------------------------------------------------------------------------------- the recipe


def _recipe(
    source: Path, family: Family, config: Configuration, generation: Configuration, tokens: Read
) -> Recipe:
    longest = config.whole("max_position_embeddings", 1024, minimum=4)
    both = {
        "activation": config.choice("activation_function", ACTIVATIONS, "gelu"),
        "norm_position": family.norm_position,
        "norm_embeddings": family.norm_embeddings,
        "positions": "sinusoidal" if family.halves else "learned",
        "max_positions": longest,
        "scale_embeddings": config.switch("scale_embedding"),
        "attention_dropout": config.fraction("attention_dropout"),
        "activation_dropout": config.fraction("activation_dropout"),
    }
    parts = {
        side: {
            **both,
            "layers": config.whole(f"{side}_layers"),
            "heads": config.whole(f"{side}_attention_heads"),
            "feed_forward": config.whole(f"{side}_ffn_dim"),
        }
        for side in layout.SIDES
    }
    settings = Configuration({**config.values, **generation.values}, source / GENERATION)
    return imported_recipe(
        source.resolve().name,
        {
            "width": config.whole("d_model"),
            "dropout": config.fraction("dropout"),
            "tie_embeddings": "all" if tokens.shared else "target",
            **parts,
        },
        (tokens.target, tokens.target) if tokens.shared else (tokens.source, tokens.target),
        max_length=min(256, longest - 2),
        decode={
            "beam": settings.whole("num_beams", 1, minimum=0) or 1,
            "length_penalty": settings.number("length_penalty", 1.0) or 1.0,
            "no_repeat_ngram": settings.whole("no_repeat_ngram_size", 0, minimum=0),
        },
    )


# --------------------------------------------------------------------------------- the weights


def _parameters(
    weights: dict[str, Tensor], family: Family, config: Configuration, tokens: Read, used: set[str]
) -> dict[str, Tensor]:
    layers = {side: config.whole(f"{side}_layers") for side in layout.SIDES}
    found = layout.to_ours(weights, family, layers)
    used |= {name for entry in layout.entries(family, layers) for name in entry.theirs}

    source_VD, target_VD = _tables(weights, tokens.shared, used)
    head_VD = weights.get(layout.HEAD)
    if head_VD is not None and not torch.equal(head_VD, target_VD):
        raise ModelError(
            "its output layer is not tied to its embeddings (tie_word_embeddings: false), and such "
            "a model cannot be imported yet"
        )
    tables = {"front": (source_VD, tokens.ids), "decoder.embedding": (target_VD, tokens.target_ids)}
    if tokens.shared:
        del tables["decoder.embedding"]
    for name, (table_VD, ids) in tables.items():
        if len(table_VD) < ids.vocabulary:
            raise ModelError(
                f"its embeddings have {len(table_VD)} rows, but its tokenizer {ids.vocabulary} "
                f"tokens"
            )
        ours_VD = layout.from_halves(ids.to_ours(table_VD.float()), 1, family)
        found[f"{name}.table.weight"] = ours_VD
    found["head.bias"] = _bias(weights, tokens, used)
    for side in layout.SIDES:
        name, theirs = layout.positions_of(side)
        if family.positions == "learned":
            found[name] = weights[theirs].float()[family.offset :]
            used.add(theirs)
        elif family.positions == "fairseq":
            found[name] = fairseq_positions(config)
        elif theirs in weights:
            _check_sinusoids(weights[theirs].float())
    return found


def _check_sinusoids(table_TD: Tensor) -> None:
    rows, width = table_TD.shape
    sinusoids_TD = torch.cat([Sinusoidal(width)(rows)[:, part::2] for part in (0, 1)], dim=1)
    if float((table_TD - sinusoids_TD).abs().max()) > 1e-3:
        raise ModelError("its positions are not the sinusoidal ones that its class has")


def _tables(weights: dict[str, Tensor], shared: bool, used: set[str]) -> tuple[Tensor, Tensor]:
    """The embeddings of source and target."""
    names = {
        "source": (layout.SHARED, "model.encoder.embed_tokens.weight"),
        "target": (layout.SHARED, "model.decoder.embed_tokens.weight", layout.HEAD),
    }
    if not shared:
        names = {side: some[1:] for side, some in names.items()}
    tables = []
    for some in names.values():
        present = [name for name in some if name in weights]
        if not present:
            raise ModelError(f"the weights have no {some[0]}; download the folder again")
        tables.append(weights[present[0]])
        for name in present:
            if torch.equal(weights[name], tables[-1]):
                used.add(name)
    return tables[0], tables[1]


def _bias(weights: dict[str, Tensor], tokens: Read, used: set[str]) -> Tensor:
    ids = tokens.target_ids
    bias_V = torch.zeros(ids.vocabulary)
    if (theirs := weights.get(layout.BIAS)) is not None:
        used.add(layout.BIAS)
        bias_V = theirs.float().flatten()
    ours_V = ids.to_ours(bias_V)
    ours_V[ids.copies] += BANNED_BIAS
    return ours_V


def fairseq_positions(config: Configuration) -> Tensor:
    """The positions of M2M100 from the first on; there the padding's id is before them."""
    first = config.whole("pad_token_id", minimum=0) + 1
    rows = config.whole("max_position_embeddings", 1024, minimum=4) + first
    return fairseq_sinusoids(rows, config.whole("d_model"))[first:]


def fairseq_sinusoids(rows: int, width: int) -> Tensor:
    """fairseq's sinusoidal positions [rows, width]: frequencies from 1 down to 1/10000, inclusive;
    all sines, then all cosines."""
    half = width // 2
    step = math.log(10000) / (half - 1)
    frequencies = torch.exp(torch.arange(half).float() * -step)
    angles = torch.arange(rows).float()[:, None] * frequencies[None]
    sinusoids = torch.cat([angles.sin(), angles.cos()], dim=1)
    return torch.nn.functional.pad(sinusoids, (0, width - 2 * half))


# ----------------------------------------------------------------------------------------------
# The tokenizers of Hugging Face's encoder-decoders, as ours.

MULTILINGUAL = ("mbart", "m2m_100")
NOT_LANGUAGES = (*SPECIALS, "<mask>")
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
SPM = ("source.spm", "target.spm")
LANGUAGES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""The languages of fairseq's models, in the order of their tokens."""
M2M_SPM = "sentencepiece.bpe.model"
KEPT = (
    JSON,
    VOCABULARY,
    TARGET_VOCABULARY,
    *SPM,
    M2M_SPM,
    "spiece.model",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""Files of a tokenizer, which an export puts back."""


@dataclass(frozen=True)
class Read:
    """Source and target tokens, and where the rows of the tables there are in ours."""

    source: Tokens
    target: Tokens
    ids: Renumbered
    target_ids: Renumbered
    shared: bool
    """Whether source and target have one table."""
    languages: list[str]
    """The languages that a text must begin with one of, as tags; empty: it has no such tokens."""
    files: list[str]


def read_tokens(
    folder: Path, family: Family, config: Configuration, generation: Configuration
) -> Read:
    """The tokens of a folder. Raises ModelError, with the reason."""
    stated = {key: value for key, value in generation.values.items() if value is not None}
    settings = Configuration({**config.values, **stated}, config.where)
    size = config.whole("vocab_size", maximum=MAX_TOKENS)
    start = settings.token("decoder_start_token_id", size)
    if start is None:
        raise ModelError(
            "its configuration has no decoder_start_token_id, so its decoder starts with a token "
            "that depends on the language (as in mBART of 25 languages), which is not supported"
        )
    last = size - 1
    special = {
        "pad": config.whole("pad_token_id", minimum=0, maximum=last),
        "begin": start,
        "end": config.whole("eos_token_id", minimum=0, maximum=last),
    }
    files = [name for name in KEPT if (folder / name).is_file()]
    if family.type == "marian":
        with using(folder / SPM[0]):
            return _read_marian(folder, config, special, files)
    if family.type == "m2m_100" and JSON not in files:
        with using(folder / M2M_SPM):
            return _read_m2m(folder, size, special, files)
    with using(folder / JSON):
        return _read_json(folder, family, settings, size, special, files)


# ---------------------------------------------------------- SentencePiece with a vocabulary of ids


def _read_marian(
    folder: Path, config: Configuration, special: Mapping[str, int], files: list[str]
) -> Read:
    models = [read_sentencepiece(folder / name) for name in SPM]
    vocabulary = _numbers(folder / VOCABULARY)
    shared = config.switch("share_encoder_decoder_embeddings", True)
    vocabularies = [vocabulary, vocabulary if shared else _numbers(folder / TARGET_VOCABULARY)]
    sizes = [config.whole("vocab_size", maximum=MAX_TOKENS)] * 2
    if not shared:
        sizes[1] = config.whole("decoder_vocab_size", len(vocabularies[1]), maximum=MAX_TOKENS)
    sides = []
    for side, (known, size) in enumerate(zip(vocabularies, sizes, strict=True)):
        own = models if shared else [models[side]]
        pieces = [piece for model in own for piece in model.pieces if piece not in known]
        extra = list(dict.fromkeys(pieces))
        tags = [name for name in known if name.startswith(">>") and name.endswith("<<")]
        names, tagged, ids = _renumbered(known, size, special, tags, len(extra))
        # In a target a missing piece is written as others: it would be <unk>, which says nothing.
        missing = extra if side == 1 else ()
        text = as_tokenizer(models[side], [*names, *extra], tagged, missing)
        sides.append((tokens_of(text), ids))
    return Read(sides[0][0], sides[1][0], sides[0][1], sides[1][1], shared, [], files)


def _read_m2m(folder: Path, size: int, special: Mapping[str, int], files: list[str]) -> Read:
    model, vocabulary = read_sentencepiece(folder / M2M_SPM), _numbers(folder / VOCABULARY)
    languages = _language_tokens(folder, vocabulary)
    whole = {**vocabulary, **languages}
    extra = [piece for piece in model.pieces if piece not in vocabulary]
    names, tags, ids = _renumbered(whole, size, special, list(languages), len(extra))
    tokens = tokens_of(as_tokenizer(model, [*names, *extra], tags))
    known = [tag_of(name) for name in languages]
    return Read(tokens, tokens, ids, ids, True, known, files)


def _language_tokens(folder: Path, vocabulary: Mapping[str, int]) -> dict[str, int]:
    """The tokens __en__, __fr__, …, whose ids follow those of the vocabulary."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        values = read_configuration(folder / name, optional=True)
        for key in ("additional_special_tokens", "extra_special_tokens"):
            found = [_content(one, values, key) for one in values.entries(key)]
            found = [one for one in found if one.startswith("__") and one.endswith("__")]
            if found:
                return {one: len(vocabulary) + place for place, one in enumerate(found)}
        if (codes_of := values.text("language_codes", "")) in LANGUAGES:
            codes = LANGUAGES[codes_of].split()
            return {f"__{code}__": len(vocabulary) + place for place, code in enumerate(codes)}
    raise ModelError(
        f"{folder} does not say which languages it has: it has no special_tokens_map.json with "
        f"additional_special_tokens; download it too"
    )


def _content(token: Any, values: Configuration, key: str) -> str:
    """The name of a token, which may be an object with further settings."""
    found = token.get("content") if isinstance(token, dict) else token
    return Configuration({key: found}, values.where).text(key)


def _numbers(path: Path) -> dict[str, int]:
    return check_vocabulary(read_json(path), path)


def _renumbered(
    numbers: Mapping[str, int],
    size: int,
    special: Mapping[str, int],
    tags: Sequence[str],
    unknowns: int,
) -> tuple[list[str], list[str], Renumbered]:
    """The names of tokens that are neither special nor tags in their order, the tags, the ids."""
    if SPECIALS[1] not in numbers:
        raise ModelError("its vocabulary has no token <unk>")
    names = [""] * size
    for name, number in numbers.items():
        if number >= size:
            raise ModelError(f"its vocabulary has the id {number}, but its embeddings {size} rows")
        names[number] = name
    unknown = numbers[SPECIALS[1]]
    taken = {unknown, *special.values()}
    silent = set(tags) | set(SPECIALS)
    last = [n for n, name in enumerate(names) if name in silent and n not in taken]
    ids = Renumbered(
        **special, unknown=unknown, vocabulary=size, unknowns=unknowns, tags=tuple(last)
    )
    apart = {*taken, *last}
    rest = [name or f"unused_{n}" for n, name in enumerate(names) if n not in apart]
    return rest, [tag_of(names[number]) for number in last], ids


# ------------------------------------------------------------------------------ tokenizer.json


def _read_json(
    folder: Path,
    family: Family,
    settings: Configuration,
    size: int,
    special: Mapping[str, int],
    files: list[str],
) -> Read:
    parts = read_tokenizer_file(folder / JSON)
    found = {name: number for number, name in enumerate(token_names(parts)) if name}
    model = parts["model"]
    unknown = model.get("unk_token") or _named(parts, model.get("unk_id"))
    unknown = unknown or next((name for name in ("<unk>", "__unk__") if name in found), None)
    if unknown is None:
        raise ModelError("its tokenizer has no unknown token")
    renamed = {SPECIALS[1] if name == unknown else name: n for name, n in found.items()}
    silent = [a["content"] for a in parts["added_tokens"] if a.get("special")]
    rest, tags, ids = _renumbered(renamed, size, special, silent, 0)
    names = {number: name for name, number in found.items()}
    known = {
        ours: names.get(number)
        for ours, number in zip(SPECIALS, (ids.pad, ids.unknown, ids.begin, ids.end), strict=True)
    }
    if ids.copies_begin:
        known[SPECIALS[2]] = None
    labelled = {names[number]: tag for number, tag in zip(ids.tags, tags, strict=True)}
    text = with_ids(parts, known, rest, labelled)
    before, after = _template(parts, found)
    languages: list[str] = []
    if family.type in MULTILINGUAL:
        mask = settings.text("mask_token", "<mask>")
        languages = [tag for name, tag in labelled.items() if name not in (*NOT_LANGUAGES, mask)]
        before = []
    if after != [ids.end]:
        raise ModelError(
            "its sources do not end with the end token alone: with nothing, or with a language "
            "after it (as in mBART of 25 languages), which is not supported"
        )
    if len(before) > 1:
        raise ModelError("its sources begin with more than one special token")
    source = with_prefix(text, labelled[names[before[0]]] if before else None)
    forced = settings.token("forced_bos_token_id", size)
    target = source
    if forced is not None and not languages:
        target = with_prefix(text, labelled[names[forced]])
    return Read(tokens_of(source), tokens_of(target), ids, ids, True, languages, files)


def _named(parts: Mapping[str, Any], number: int | None) -> str | None:
    return None if number is None else token_names(parts)[number]


def _template(parts: Mapping[str, Any], numbers: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """The ids that its post-processor puts before and after a text."""
    processor = parts.get("post_processor") or {}
    steps = processor.get("processors") if processor.get("type") == "Sequence" else [processor]
    for step in steps or []:
        if step.get("type") in ("RobertaProcessing", "BertProcessing"):
            return [int(step["cls"][1])], [int(step["sep"][1])]
        if step.get("type") == "TemplateProcessing":
            sides: tuple[list[int], list[int]] = ([], [])
            past = False
            for piece in step["single"]:
                if "Sequence" in piece:
                    past = True
                    continue
                sides[past].extend(step["special_tokens"][piece["SpecialToken"]["id"]]["ids"])
            return sides
    return [], []
