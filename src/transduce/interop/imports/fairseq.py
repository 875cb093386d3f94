"""Transformers of fairseq, https://github.com/facebookresearch/fairseq, as models of ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, SPECIALS, UNKNOWN, Tokens
from transduce.errors import ModelError, TokensError
from transduce.interop.imports.configuration import Configuration, describe
from transduce.interop.imports.pickled import Made, read_checkpoint
from transduce.interop.imports.weights import (
    Layout,
    Linear,
    Parts,
    Weights,
    arrange,
    create_model,
    fill,
    fill_block,
    fill_norm,
    imported_recipe,
)
from transduce.models.decoders import TransformerDecoder
from transduce.models.encoders import TransformerEncoder
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.positions import Learned
from transduce.tasks.transduce import Transducer

# ----------------------------------------------------------------------------------------------
# A Transformer of fairseq, of the task translation, as a model of ours.

NAME = "a Transformer of fairseq"
FILES = ("checkpoint_best.pt", "checkpoint_last.pt", "model.pt", "checkpoint.pt")
FIRST = 2  # the row of the first position: those before belong to padding
# Settings that make another network than ours, where they are on.
OFF = (
    "adaptive_input",
    "adaptive_softmax_cutoff",
    "cross_self_attention",
    "no_cross_attention",
    "no_decoder_final_norm",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
    "base_layers",
)
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_fast": "gelu_tanh", "swish": "silu"}


def recognises(source: Path) -> bool:
    path = _checkpoint(source)
    return path is not None and bool(_dictionaries(path))


def read(source: Path) -> Transducer:
    """The model. Raises ModelError where we have no equal of it."""
    path = _checkpoint(source)
    if path is None:
        raise ModelError(f"{source} has no checkpoint: none of {', '.join(FILES)}")
    checkpoint = read_checkpoint(path)
    if not isinstance(checkpoint.root, dict):
        raise ModelError(f"{path} is not a checkpoint of fairseq")
    settings = _settings(checkpoint.root, path)
    weights = Weights(checkpoint.tensors(checkpoint.root.get("model")), path)
    for key in OFF:
        if key in settings and not settings.is_one_of(key, (False, 0, "")):
            raise ModelError(f"{path} has {key}, which transduce has no equal of")
    source_V, target_V = _vocabularies(path, settings, weights)
    sections = {side: _section(settings, weights, side, path) for side in ("encoder", "decoder")}
    tables = {
        "encoder": source_V.layout.embeddings(weights["encoder.embed_tokens.weight"]),
        "decoder": target_V.layout.embeddings(weights["decoder.embed_tokens.weight"]),
    }
    head_VD = weights.get("decoder.output_projection.weight")
    if head_VD is None and not settings.switch("share_decoder_input_output_embed"):
        head_VD = weights.get("decoder.embed_out")
    head_VD = tables["decoder"] if head_VD is None else target_V.layout.embeddings(head_VD)
    tied = torch.equal(head_VD, tables["decoder"])
    shared = tied and source_V is target_V and torch.equal(tables["encoder"], tables["decoder"])
    limits = [len(table_TD) for _, table_TD in sections.values() if table_TD is not None]
    recipe = imported_recipe(
        path.resolve().parent.name,
        {
            "width": tables["decoder"].shape[1],
            "tie_embeddings": "all" if shared else "target" if tied else "none",
            "dropout": settings.fraction("dropout"),
            **{side: section for side, (section, _) in sections.items()},
        },
        (source_V.tokens, target_V.tokens),
        max_length=min([*limits, 1025]) - 1,
    )
    model = create_model(recipe, (source_V.tokens, target_V.tokens), weights.size, path)
    assert isinstance(model, Transducer)
    network = model.network
    assert isinstance(network.encoder, TransformerEncoder)
    assert isinstance(network.decoder, TransformerDecoder)
    fill(network.head.weight, head_VD, f"{path}: the output layer")
    bias_V = target_V.layout.bias(torch.zeros(target_V.layout.size))
    fill(network.head.bias, bias_V, f"{path}: the bias of the output layer")
    fronts = {"encoder": network.front, "decoder": network.decoder.embedding}
    stacks: dict[str, TransformerEncoder | TransformerDecoder] = {
        "encoder": network.encoder,
        "decoder": network.decoder,
    }
    for side, (_, table_TD) in sections.items():
        where = f"{path}: {side}"
        fill(fronts[side].table.weight, tables[side], f"{where}.embed_tokens")
        _fill_positions(fronts[side], table_TD, where)
        if (norm := fronts[side].norm) is not None:
            fill_norm(norm, weights.linear(f"{side}.layernorm_embedding"), where)
        for number, block in enumerate(stacks[side].stack):
            name = f"{side}.layers.{number}"
            fill_block(block, partial(_parts, weights, name), f"{path}: {name}")
        if f"{side}.layer_norm.weight" in weights:
            fill_norm(stacks[side].norm, weights.linear(f"{side}.layer_norm"), where)
        weights.ignore(f"{side}.version", f"{side}.embed_positions._float_tensor")
    weights.check_all_used()
    model.imported = {"format": "fairseq"}
    network.eval()
    return model


# -------------------------------------------------------------------------------- files, settings


def _checkpoint(source: Path) -> Path | None:
    if source.is_file():
        return source if source.suffix == ".pt" else None
    folders = (source, source / "checkpoints")
    return next((f / name for f in folders for name in FILES if (f / name).is_file()), None)


def _around(path: Path) -> list[Path]:
    """Folders where dictionaries and codes may be."""
    here = path.parent
    return [here, here / "data", here.parent, here.parent / "data", here.parent / "data-bin"]


def _dictionaries(path: Path) -> dict[str, Path]:
    """The dictionaries by language, of the first folder that has some."""
    for folder in _around(path):
        found = sorted(folder.glob("dict.*.txt"))
        if found:
            return {one.name.removeprefix("dict.").removesuffix(".txt"): one for one in found}
    return {}


def _settings(root: dict[str, Any], path: Path) -> Configuration:
    """Those of the model and the task; newer checkpoints have them in `cfg`."""
    parts = [root.get("args")]
    whole = root.get("cfg")
    if isinstance(whole, dict):
        parts += [whole.get("task"), whole.get("model")]
    found: dict[str, Any] = {}
    for part in parts:
        values = part.state if isinstance(part, Made) else part
        if isinstance(values, dict):
            found |= {key: value for key, value in values.items() if isinstance(key, str)}
    settings = Configuration(found, path)
    kind = settings.text("arch", settings.text("_name", "something else"))
    if not kind.startswith(("transformer", "vaswani")) or "lm" in kind.split("_"):
        raise ModelError(f"{path} is not a Transformer for translation, but {describe(kind)}")
    return settings


def _vocabularies(
    path: Path, settings: Configuration, weights: Weights
) -> tuple[Vocabulary, Vocabulary]:
    files = _dictionaries(path)
    if not files:
        raise ModelError(f"{path} has no dictionaries beside it: dict.SOURCE.txt, dict.TARGET.txt")
    sizes = [len(weights[f"{side}.embed_tokens.weight"]) for side in ("encoder", "decoder")]
    names = {language: read_dictionary(file) for language, file in files.items()}
    chosen = _languages(path, settings, {one: len(of) for one, of in names.items()}, sizes)
    for language, size in zip(chosen, sizes, strict=True):
        if len(names[language]) != size:
            raise ModelError(
                f"{files[language]} has {len(names[language])} tokens, with the special ones, and "
                f"the embeddings have {size}"
            )
    found = next((f / name for f in _around(path) for name in CODES if (f / name).is_file()), None)
    codes = None if found is None else read_codes(found)
    source = vocabulary_of(names[chosen[0]], codes)
    same = names[chosen[0]] == names[chosen[1]]
    return source, source if same else vocabulary_of(names[chosen[1]], codes)


def _languages(
    path: Path, settings: Configuration, sizes: dict[str, int], wanted: Sequence[int]
) -> tuple[str, str]:
    """Source and target: as the settings say, else by the number of tokens, else by the name of
    the training data.
    """
    said = (settings.text("source_lang", ""), settings.text("target_lang", ""))
    pairs = [(one, two) for one in sizes for two in sizes if one != two or len(sizes) == 1]
    if said in pairs:
        return said
    if missing := [one for one in said if one and one not in sizes]:
        raise ModelError(
            f"{path} is for {said[0]} and {said[1]}, and there is no dict.{missing[0]}.txt beside "
            f"it; copy it too"
        )
    fitting = [(a, b) for a, b in pairs if [sizes[a], sizes[b]] == list(wanted)]
    data = settings.text("data", "")
    named = [pair for pair in fitting if data.endswith("-".join(pair))]
    choice = fitting if len(fitting) == 1 else named
    if len(choice) != 1:
        raise ModelError(
            f"{path} does not say which of the dictionaries {', '.join(sorted(sizes))} is the "
            f"source's and which the target's: keep these two alone, if they have as many tokens "
            f"as its embeddings, {wanted[0]} and {wanted[1]}"
        )
    return choice[0]


def _section(
    settings: Configuration, weights: Weights, side: str, path: Path
) -> tuple[dict[str, Any], Tensor | None]:
    """A section of a recipe, and the table of its positions; None: none."""
    width = weights[f"{side}.embed_tokens.weight"].shape[1]
    pre = settings.switch(f"{side}_normalize_before")
    if pre != (f"{side}.layer_norm.weight" in weights):
        raise ModelError(
            f"{path}: the norm after the last layer of the {side} is not as in transduce, which "
            f"has one with pre-norm and none with post-norm"
        )
    section = {
        "layers": settings.whole(f"{side}_layers"),
        "heads": settings.whole(f"{side}_attention_heads"),
        "feed_forward": settings.whole(f"{side}_ffn_embed_dim"),
        "activation": settings.choice("activation_fn", ACTIVATIONS, "relu"),
        "norm_position": "pre" if pre else "post",
        "scale_embeddings": not settings.switch("no_scale_embedding"),
        "norm_embeddings": settings.switch("layernorm_embedding"),
        "attention_dropout": settings.fraction("attention_dropout"),
        "activation_dropout": settings.fraction("activation_dropout"),
    }
    if settings.switch("no_token_positional_embeddings"):
        return section | {"positions": "none"}, None
    learned_TD = weights.get(f"{side}.embed_positions.weight")
    if learned_TD is not None:
        table_TD = learned_TD[FIRST:]
    else:
        key = "max_source_positions" if side == "encoder" else "max_target_positions"
        table_TD = _sinusoids(min(settings.whole(key, 1024), 4096), width)
    return section | {"positions": "learned", "max_positions": len(table_TD)}, table_TD


def _sinusoids(rows: int, width: int) -> Tensor:
    """fairseq's: positions count from 2, all sines stand before all cosines."""
    half = width // 2
    steps = math.log(10000.0) / max(half - 1, 1)
    frequencies = torch.exp(-steps * torch.arange(half, dtype=torch.float64))
    places = torch.arange(FIRST, rows + FIRST, dtype=torch.float64)
    angles = torch.outer(places, frequencies)
    table_TD = torch.cat([angles.sin(), angles.cos()], dim=1).float()
    return torch.nn.functional.pad(table_TD, (0, width % 2))


# ---------------------------------------------------------------------------------------- weights


def _fill_positions(front: TokenEmbedding, table_TD: Tensor | None, where: str) -> None:
    if table_TD is not None:
        assert front.positions is not None
        learned = front.positions.positions
        assert isinstance(learned, Learned)
        fill(learned.table_TD, table_TD, f"{where}.embed_positions")


def _parts(weights: Weights, name: str, kind: str) -> Parts:
    if kind == "feed_forward":
        norm = weights.linear(f"{name}.final_layer_norm")
        return Parts([weights.linear(f"{name}.fc1")], weights.linear(f"{name}.fc2"), norm)
    own = f"{name}.{'self_attn' if kind == 'self_attention' else 'encoder_attn'}"
    out_of, norm = weights.linear(f"{own}.out_proj"), weights.linear(f"{own}_layer_norm")
    if f"{own}.in_proj_weight" in weights:  # the oldest checkpoints have all three as one
        joined = Linear(weights[f"{own}.in_proj_weight"], weights.get(f"{own}.in_proj_bias"))
        return Parts([joined], out_of, norm)
    return Parts([weights.linear(f"{own}.{part}_proj") for part in "qkv"], out_of, norm)


# ----------------------------------------------------------------------------------------------
# Dictionaries of fairseq, and codes of subword-nmt, as tokens of ours.
#
# A dictionary is a file dict.LANGUAGE.txt, a token and its count in each line; four special
# tokens stand before them. Codes (https://github.com/rsennrich/subword-nmt) are merges of byte
# pair encoding; a subword within a word ends in @@.

THEIRS = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3
CODES = ("bpe.code", "bpe.codes", "bpecodes", "code", "codes", "bpe_codes")
WITHIN = "@@"  # ends a subword that is not the last one of its word
LAST = "</w>"  # ends the last one, in codes


@dataclass(frozen=True)
class Vocabulary:
    tokens: Tokens
    layout: Layout


def read_dictionary(path: Path) -> list[str]:
    """The tokens of a dictionary by id, special ones included. Raises ModelError."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error})") from None
    names = []
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r").removesuffix(" #fairseq:overwrite")
        if not line:
            continue
        name, space, count = line.rpartition(" ")
        if not space or not count.isdecimal():
            raise ModelError(f"{path}, line {number}, is no token with its count")
        names.append(name)
    return [*THEIRS, *names]


def read_codes(path: Path) -> list[tuple[str, str]]:
    """The merges of subword-nmt, the most frequent first. Raises ModelError."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error})") from None
    if not lines[0].startswith("#version: 0.2"):
        raise ModelError(f"{path} does not begin with '#version: 0.2', as codes of subword-nmt do")
    merges: dict[tuple[str, str], None] = {}
    for number, line in enumerate(lines[1:], start=2):
        parts = line.removesuffix("\r").strip(" ").split(" ")
        if parts == [""]:
            continue
        if len(parts) != 2:
            raise ModelError(f"{path}, line {number}, is not two subwords that are joined")
        merges.setdefault((parts[0], parts[1]))
    return list(merges)


def vocabulary_of(names: Sequence[str], codes: Sequence[tuple[str, str]] | None) -> Vocabulary:
    """With codes, subwords; without, symbols that stand between spaces.

    fairseq begins every target with its END.
    """
    layout = arrange(names, ("<pad>", "<unk>", "</s>", "</s>"))
    if codes is None:
        symbols = recipe.Tokens(level="symbol")
        return Vocabulary(_checked(symbols, layout.names), layout)
    return _subwords(layout, codes)


def _checked(settings: recipe.Tokens, names: Sequence[str]) -> Tokens:
    try:
        return Tokens.of_vocabulary(settings, names)
    except TokensError as error:
        raise ModelError(f"the dictionary cannot be used: {error}") from None


def _subwords(layout: Layout, codes: Sequence[tuple[str, str]]) -> Vocabulary:
    """Subwords as the codes write them: the last one of a word ends in </w>.

    What the codes make and the dictionary has not is unknown to the model: it gets rows of its
    own, which are copies of the unknown token's.
    """
    vocabulary = {name: number for number, name in enumerate(SPECIALS)}
    for name in layout.names:
        within = name.endswith(WITHIN) and name != WITHIN
        spelt = name.removesuffix(WITHIN) if within else name + LAST
        while spelt in vocabulary:
            spelt += "_"
        vocabulary[spelt] = len(vocabulary)
    known = len(vocabulary)
    for first, second in codes:
        for piece in (first, second, first + second):
            vocabulary.setdefault(piece, len(vocabulary))
    model = models.BPE(
        vocabulary, list(codes), unk_token=SPECIALS[UNKNOWN], end_of_word_suffix=LAST
    )
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix=LAST)
    added = len(vocabulary) - known
    unknown = layout.rows[UNKNOWN]
    assert unknown is not None
    wider = replace(
        layout,
        rows=(*layout.rows, *[unknown] * added),
        unwritten=layout.unwritten | frozenset(range(known, known + added)),
    )
    assert BEGIN in wider.unwritten
    return Vocabulary(Tokens(tokenizer), wider)
