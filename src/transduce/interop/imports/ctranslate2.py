"""Transformers of CTranslate2: a folder with model.bin and vocabularies.

https://opennmt.net/CTranslate2. Its folders say nothing of how texts are tokenized: outside of our
own exports, a source is tokens of the vocabulary with spaces between them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, SPECIALS, Tokens
from transduce.errors import ModelError, TokensError
from transduce.interop.imports.configuration import Configuration, read_configuration
from transduce.interop.imports.ctranslate2_file import ModelFile, parts_of, read_model_file
from transduce.interop.imports.huggingface import CONFIG
from transduce.interop.imports.weights import (
    Layout,
    Linear,
    Parts,
    arrange,
    create_model,
    fill,
    fill_block,
    fill_norm,
    halves_to_pairs,
    imported_recipe,
    joined,
)
from transduce.models.decoders import TransformerDecoder
from transduce.models.encoders import TransformerEncoder
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.positions import Learned, Sinusoidal
from transduce.recipe import RECIPE
from transduce.tasks.folder import read_definition
from transduce.tasks.transduce import Transducer

NAME = "a Transformer of CTranslate2"
MODEL = "model.bin"


def recognises(source: Path) -> bool:
    try:
        if not (source / MODEL).is_file() and not parts_of(source / MODEL):
            return False
        name = read_model_file(source / MODEL).specification
    except ModelError:
        return True  # `read` says what is wrong with it
    return name in HEADS or name == "TransformerSpec"


def read(source: Path) -> Transducer:
    """The model. Raises ModelError where we have no equal of it."""
    file = read_model_file(source / MODEL)
    if file.specification not in (*HEADS, "TransformerSpec"):
        raise ModelError(f"{file.path} is a {file.specification}, which is not a Transformer")
    settings = Settings(source, file)
    sides = [settings.side("encoder"), settings.side("decoder")]
    own = read_definition(source) if (source / RECIPE).is_file() else None  # an export of ours
    tokens = None if own is None else (own.source_tokens, own.target_tokens)
    vocabularies = read_vocabularies(source, settings.config, tokens)
    tables = [
        layout.embeddings(_rows(file, side, layout.size) * side.factor)
        for layout, side in zip(vocabularies.layouts, sides, strict=True)
    ]
    head = _linear(file, "decoder/projection")
    target = vocabularies.layouts[1]
    if settings.on("decoder/start_from_zero_embedding"):
        tables[1][BEGIN] = 0.0
    bias_V = torch.zeros(len(head.weight)) if head.bias is None else head.bias
    head_VD, bias_V = target.embeddings(head.weight), target.bias(bias_V)
    shared = vocabularies.source is vocabularies.target
    recipe = imported_recipe(
        source.resolve().name,
        {
            "width": tables[1].shape[1],
            "tie_embeddings": _tied(tables[0], tables[1], head_VD, shared),
            "source_end": settings.config.switch("add_source_eos"),
            "encoder": sides[0].section,
            "decoder": sides[1].section,
        },
        (vocabularies.source, vocabularies.target),
        max_length=settings.max_length(sides),
    )
    if own is not None:
        recipe = own.recipe.model_copy(update={"model": recipe.model})
    tokens = (vocabularies.source, vocabularies.target)
    model = create_model(recipe, tokens, file.path.stat().st_size, source)
    assert isinstance(model, Transducer)
    network = model.network
    fill(network.head.weight, head_VD, "the output layer")
    fill(network.head.bias, bias_V, "the bias of the output layer")
    assert isinstance(network.encoder, TransformerEncoder)
    assert isinstance(network.decoder, TransformerDecoder)
    _fill_side(file, sides[0], tables[0], network.front, network.encoder)
    _fill_side(file, sides[1], tables[1], network.decoder.embedding, network.decoder)
    settings.check_all_used()
    model.imported = {"format": "ctranslate2", "specification": file.specification}
    network.eval()
    return model


def _rows(file: ModelFile, side: Side, names: int) -> Tensor:
    table_VD = file.tensor(side.table)
    if len(table_VD) != names:
        raise ModelError(
            f"{file.path}: {side.table} has {len(table_VD)} rows for a vocabulary of {names}"
        )
    return table_VD


def _tied(source_VD: Tensor, target_VD: Tensor, head_VD: Tensor, shared: bool) -> str:
    """As `model.tie_embeddings`, by what is equal."""
    if not torch.equal(target_VD, head_VD):
        return "none"
    return "all" if shared and torch.equal(source_VD, target_VD) else "target"


def _fill_side(
    file: ModelFile,
    side: Side,
    table_VD: Tensor,
    embedding: TokenEmbedding,
    stack: TransformerEncoder | TransformerDecoder,
) -> None:
    fill(embedding.table.weight, table_VD, f"{file.path}: {side.table}")
    if side.positions_TD is not None:
        assert embedding.positions is not None
        learned = embedding.positions.positions
        assert isinstance(learned, Learned)
        fill(learned.table_TD, side.positions_TD, f"{file.path}: the positions of the {side.name}")
    if embedding.norm is not None:
        name = f"{side.name}/layernorm_embedding"
        fill_norm(embedding.norm, _norm(file, name), f"{file.path}: {name}")
    for number, block in enumerate(stack.stack):
        name = f"{side.name}/layer_{number}"
        fill_block(block, partial(_parts, file, side, name), f"{file.path}: {name}")
    if side.section["norm_position"] == "pre":
        name = f"{side.name}/layer_norm"
        fill_norm(stack.norm, _norm(file, name), f"{file.path}: {name}")


def _parts(file: ModelFile, side: Side, name: str, kind: str) -> Parts:
    own = {"self_attention": "self_attention", "cross_attention": "attention"}.get(kind, "ffn")
    norm = _norm(file, f"{name}/{own}/layer_norm")
    if kind == "feed_forward":
        gated = f"{name}/ffn/linear_0_noact/weight" in file
        products = ["linear_0", "linear_0_noact"] if gated else ["linear_0"]
    else:
        products = ["linear_0"] if kind == "self_attention" else ["linear_0", "linear_1"]
    into = [_linear(file, f"{name}/{own}/{one}") for one in products]
    if kind == "self_attention" and side.halves:
        into = [_paired(into[0], side.section["heads"])]
    last = 2 if kind == "cross_attention" else 1
    return Parts(into, _linear(file, f"{name}/{own}/linear_{last}"), norm)


def _paired(into: Linear, heads: int) -> Linear:
    """Queries and keys for rotary positions of neighbouring features."""
    weights = into.weight.chunk(3)
    biases = (None,) * 3 if into.bias is None else into.bias.chunk(3)
    query, key, value = (Linear(w, b) for w, b in zip(weights, biases, strict=True))
    return joined([halves_to_pairs(query, heads), halves_to_pairs(key, heads), value])


def _linear(file: ModelFile, name: str) -> Linear:
    bias = file.tensor(f"{name}/bias") if f"{name}/bias" in file else None
    return Linear(file.tensor(f"{name}/weight"), bias)


def _norm(file: ModelFile, name: str) -> Linear:
    bias = file.tensor(f"{name}/beta") if f"{name}/beta" in file else None
    return Linear(file.tensor(f"{name}/gamma"), bias)


# ----------------------------------------------------------------------------------------------
# The settings of a Transformer of CTranslate2, as sections of a recipe.

HEADS = {"TransformerBase": 8, "TransformerBig": 16}  # of old files, which do not say it
ACTIVATIONS = {0: "relu", 1: "gelu_tanh", 2: "silu", 3: "gelu"}
GATED = {"gelu_tanh": "geglu_tanh", "silu": "swiglu", "gelu": "geglu"}
ROWS = 2048  # of the sinusoids that it computes itself
# Settings that change no number of a model that we can read.
IDLE = ("alignment_layer", "alignment_heads", "embeddings_merge", "multi_query_attention")
ALIBI = ("alibi", "alibi_use_positive_positions", "scale_alibi")


@dataclass(frozen=True)
class Side:
    """An encoder or a decoder."""

    name: str
    section: dict[str, Any]
    """Its section of a recipe."""
    table: str
    """The name of its embeddings."""
    factor: float
    """Of the embeddings, where it is neither 1 nor the square root of the width."""
    positions_TD: Tensor | None
    """Of learned positions."""
    halves: bool
    """Whether rotary positions pair the halves of a head."""


class Settings:
    """What a folder says of its model; every variable that is looked at is ticked off."""

    def __init__(self, folder: Path, file: ModelFile) -> None:
        self._file, self._asked = file, set[str]()
        self.config = read_configuration(folder / CONFIG, optional=True)
        if self.config.switch("add_source_bos"):
            raise ModelError(
                f"{folder} puts a token before each source (add_source_bos), which transduce does "
                f"not do"
            )
        stated = "layer_norm_epsilon" in self.config
        self._epsilon = self.config.number("layer_norm_epsilon", 0.0, 0, 1) if stated else None

    def side(self, name: str) -> Side:
        file, first = self._file, f"{name}/layer_0"
        width = file.variable(f"{first}/self_attention/layer_norm/gamma").shape[0]
        heads = self._whole(f"{name}/num_heads", HEADS.get(file.specification))
        self._refuse_others(name, heads)
        factor = self._factor(name, width)
        scaled = math.isclose(factor, math.sqrt(width), rel_tol=1e-6)
        table = f"{name}/embeddings_0/weight"
        section: dict[str, Any] = {
            "layers": self._layers(name),
            "heads": heads,
            "feed_forward": file.variable(f"{first}/ffn/linear_1/weight").shape[-1],
            "activation": self._activation(name),
            "norm": "layer" if f"{first}/self_attention/layer_norm/beta" in file else "rms",
            "norm_position": "pre" if self.on(f"{name}/pre_norm", True) else "post",
            "norm_epsilon": self._epsilon,
            "norm_embeddings": f"{name}/layernorm_embedding/gamma" in file,
            "scale_embeddings": scaled,
        }
        own = self._alike(name, "head_dim")
        if own is not None and own * heads != width:
            section["head_width"] = int(own)
        rotary, halves = self._rotary(name, width, heads)
        positions_TD = None if rotary else self._table_of_positions(name, width)
        if rotary:
            section |= rotary
            self._check_no_table(name)
        elif positions_TD is None:
            section["positions"] = "sinusoidal"
        elif not positions_TD.any():
            section["positions"], positions_TD = "none", None
        else:
            section |= {"positions": "learned", "max_positions": len(positions_TD)}
        table = table if table in file else f"{name}/embeddings/weight"
        used = 1.0 if scaled else factor
        return Side(name, section, table, used, positions_TD, halves)

    def max_length(self, sides: Sequence[Side]) -> int | None:
        """The longest sequence for which all sides have positions, without END."""
        maximum = [len(s.positions_TD) for s in sides if s.positions_TD is not None]
        return min(min(maximum) - 1, 1024) if maximum else None

    def on(self, name: str, default: bool = False) -> bool:
        """A setting that is on or off."""
        self._asked.add(name)
        return self._file.number(name, float(default)) != 0

    def check_all_used(self) -> None:
        """Raise ModelError where a variable stands for something that we have not."""
        left = sorted(name for name in self._file if not self._is_known(name))
        if left:
            raise ModelError(
                f"{self._file.path} has {left[0]} ({len(left)} such variables), which transduce "
                f"has no place for, so it would be another model"
            )

    # ------------------------------------------------------------------------- implementation

    def _is_known(self, name: str) -> bool:
        """Whether a variable was read: a setting that was asked for, or weights."""
        if name in self._asked or name.rpartition("/")[2] in IDLE:
            return True
        name = name.removesuffix("_scale")
        layer = re.sub(r"^(encoder|decoder)/layer_\d+/", "", name)
        kinds = ("weight", "bias", "gamma", "beta")
        return name.rpartition("/")[2] in kinds and layer.rpartition("/")[0] in WEIGHTS

    def _layers(self, side: str) -> int:
        numbers = {
            int(part)
            for name in self._file
            if name.startswith(f"{side}/layer_")
            and (part := name.split("/")[1].removeprefix("layer_")).isdecimal()
        }
        if not numbers or numbers != set(range(len(numbers))):
            raise ModelError(f"{self._file.path} has not all layers of its {side}")
        return len(numbers)

    def _whole(self, name: str, default: int | None) -> int:
        self._asked.add(name)
        value = self._file.number(name, default)
        if value != int(value) or not 0 <= value < 2**31:
            raise ModelError(f"{self._file.path}: {name} is {value}, which is no number of things")
        return int(value)

    def _factor(self, side: str, width: int) -> float:
        """What embeddings are multiplied by: a flag, or the factor itself."""
        names = [f"{side}/scale_embeddings"]
        names += [
            f"{side}/{part}/multiply_by_sqrt_depth" for part in ("embeddings", "embeddings_0")
        ]
        found = next((name for name in names if name in self._file), None)
        if found is None:
            return math.sqrt(width)
        self._asked.add(found)
        value = self._file.number(found)
        if self._file.variable(found).dtype == "int8":
            return math.sqrt(width) if value else 1.0
        return value

    def _activation(self, side: str) -> str:
        number = self._whole(f"{side}/activation", 0)
        function = ACTIVATIONS.get(number)
        gated = f"{side}/layer_0/ffn/linear_0_noact/weight" in self._file
        if function is not None and gated:
            function = GATED.get(function)
        if function is None:
            kind = "gated activation" if gated else "activation"
            raise ModelError(
                f"{self._file.path}: the {side} has the {kind} number {number}, which transduce "
                f"has not"
            )
        return function

    def _refuse_others(self, side: str, heads: int) -> None:
        if self.on(f"{side}/alibi"):
            raise ModelError(f"{self._file.path} has ALiBi positions, which transduce has not")
        self._asked.update(f"{side}/{name}" for name in ALIBI)
        shared = self._alike(side, "num_heads_kv")
        if shared is not None and shared != heads:
            raise ModelError(
                f"{self._file.path} has {shared:.0f} heads of keys for {heads} of queries, which "
                f"is not imported from CTranslate2; import the original model"
            )

    def _alike(self, side: str, setting: str) -> float | None:
        """A setting of the self-attention of all layers; None where none has it."""
        attentions = ("self_attention", "attention")
        names = [
            name
            for name in self._file
            if name.startswith(f"{side}/layer_")
            and any(name.endswith(f"/{one}/{setting}") for one in attentions)
        ]
        self._asked.update(names)
        values = {self._file.number(name) for name in names}
        if len(values) > 1:
            raise ModelError(f"{self._file.path}: {setting} differs between layers of its {side}")
        return values.pop() if values else None

    def _rotary(self, side: str, width: int, heads: int) -> tuple[dict[str, Any], bool]:
        rotated = self._alike(side, "rotary_dim")
        if rotated is None:
            return {}, False
        if rotated not in (0, width / heads):
            raise ModelError(
                f"{self._file.path} rotates {rotated:.0f} features of a head of {width // heads}; "
                f"transduce rotates all of them"
            )
        pairs = self._alike(side, "rotary_interleave")
        base = self._alike(side, "rotary_base")
        section = {"positions": "rotary", "rotary_base": 10000.0 if base is None else base}
        return section, pairs == 0

    def _table_of_positions(self, side: str, width: int) -> Tensor | None:
        """What is added to the embeddings; None where it is our sinusoids."""
        name = f"{side}/position_encodings/encodings"
        if name not in self._file:
            return _counted_from_one(width)
        self._asked.add(name)
        table_TD = self._file.tensor(name)
        ours_TD = Sinusoidal(width)(len(table_TD))
        # In half precision, or quantized, they are near.
        same = ours_TD.shape == table_TD.shape and float((ours_TD - table_TD).abs().max()) < 1e-3
        return None if same else table_TD

    def _check_no_table(self, side: str) -> None:
        name = f"{side}/position_encodings/encodings"
        self._asked.add(name)
        if name in self._file and bool(self._file.tensor(name).any()):
            raise ModelError(
                f"{self._file.path} has both rotary and other positions in its {side}; transduce "
                f"has one of them"
            )


ATTENTIONS = ("self_attention", "attention")
WEIGHTS = frozenset(
    [f"{one}/linear_{number}" for one in ATTENTIONS for number in range(3)]
    + [f"{one}/layer_norm" for one in (*ATTENTIONS, "ffn")]
    + ["ffn/linear_0", "ffn/linear_0_noact", "ffn/linear_1", "decoder/projection"]
    + [f"{side}/{part}" for side in ("encoder", "decoder") for part in ("layer_norm", "embeddings")]
    + [f"{side}/layernorm_embedding" for side in ("encoder", "decoder")]
    + ["encoder/embeddings_0"]
)
"""Names of what has weights, those of a layer without its number."""


def _counted_from_one(width: int) -> Tensor:
    """Its own sinusoids: positions count from 1, all sines stand before all cosines."""
    half = width // 2
    steps = math.log(10000.0) / max(half - 1, 1)
    frequencies = torch.exp(-steps * torch.arange(half, dtype=torch.float64))
    angles = torch.outer(torch.arange(1, ROWS + 1, dtype=torch.float64), frequencies)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


# ----------------------------------------------------------------------------------------------
# The vocabularies of a folder of CTranslate2, as tokens of ours.

PADS = ("<blank>", "<pad>", "<PAD>", "[PAD]")
USUAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


@dataclass(frozen=True)
class Vocabularies:
    source: Tokens
    target: Tokens
    layouts: tuple[Layout, Layout]
    """Of source and target."""


def read_vocabularies(
    folder: Path, config: Configuration, own: tuple[Tokens, Tokens] | None
) -> Vocabularies:
    """Our own tokens where there are some; otherwise symbols that stand between spaces.

    Raises ModelError where a file is missing or damaged.
    """
    names = [_names(folder, side) for side in ("source", "target")]
    unknown = config.text("unk_token", USUAL["unk_token"])
    # It adds the unknown token where a file has none.
    names = [one if unknown in one else [*one, unknown] for one in names]
    layouts = [_arranged(folder, one, config) for one in names]
    alike = all(layout.rows == tuple(range(layout.size)) for layout in layouts)
    if own is not None and not (alike and [tokens.names() for tokens in own] == names):
        raise ModelError(f"the tokens of {folder} are not those of the vocabularies beside them")
    try:
        symbols = recipe.Tokens(level="symbol")
        source, target = own or (Tokens.of_vocabulary(symbols, one.names) for one in layouts)
    except TokensError as error:
        raise ModelError(f"the vocabulary of {folder} cannot be used: {error}") from None
    if source.to_json() == target.to_json():
        source = target
    return Vocabularies(source, target, (layouts[0], layouts[1]))


def _arranged(folder: Path, names: list[str], config: Configuration) -> Layout:
    specials = {key: config.text(key, usual) for key, usual in USUAL.items()}
    if config.values.get("decoder_start_token", "") is None:
        raise ModelError(
            f"{folder} has no decoder_start_token: every target begins with a token that the "
            f"caller gives, such as a language, which is not imported from CTranslate2"
        )
    if specials["eos_token"] not in names:
        raise ModelError(f"{folder}: the token {specials['eos_token']} ends texts, and is missing")
    begin = config.text("decoder_start_token", specials["bos_token"])
    padding = next((name for name in PADS if name in names), None)
    return arrange(names, (padding, specials["unk_token"], begin, specials["eos_token"]))


def _names(folder: Path, side: str) -> list[str]:
    for stem in (f"{side}_vocabulary", "shared_vocabulary"):
        for ending in (".json", ".txt"):
            path = folder / f"{stem}{ending}"
            if path.is_file():
                return _read_names(path)
    raise ModelError(f"{folder} has no {side}_vocabulary.json or .txt, and no shared_vocabulary")


def _read_names(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8")
        names = json.loads(text) if path.suffix == ".json" else text.removesuffix("\n").split("\n")
        json.dumps(names, ensure_ascii=False).encode("utf-8")  # fails for half a character
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error})") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{path} is not a list of tokens")
    names = [name.removesuffix("\r") for name in names]
    if len(names) <= len(SPECIALS):
        raise ModelError(f"{path} has {len(names)} tokens, which are no vocabulary")
    return names
