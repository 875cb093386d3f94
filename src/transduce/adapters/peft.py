"""PEFT's own files: adapter_config.json and adapter_model.safetensors, of LoRA and DoRA.

https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from transduce import recipe
from transduce.adapters.choice import Adapter
from transduce.adapters.network import AdapterState, LowRankWeights, adaptable
from transduce.errors import ModelError
from transduce.models.trainable import TrainableNetwork
from transduce.models.weights import weights_of
from transduce.nn.low_rank import row_norms
from transduce.storage import make_folder, read_tensors, write_json, write_tensors

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
A, B, MAGNITUDE = ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"
PLAIN = re.compile(r"[A-Za-z0-9_.]+")
TASKS = {"transduce": "SEQ_2_SEQ_LM", "language_modeling": "CAUSAL_LM"}
# Ways to initialise B A that leave the weights beneath as they are.
HARMLESS = (True, False, None, "gaussian", "eva", "orthogonal")
# Settings that change what an adapter computes and have no equal in ours.
REFUSED = (
    "modules_to_save",
    "fan_in_fan_out",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "alora_invocation_tokens",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
    "megatron_config",
)


class HasNetwork(Protocol):
    """The model that an adapter is read or written for."""

    @property
    def recipe(self) -> recipe.Recipe: ...

    @property
    def network(self) -> TrainableNetwork: ...


def write_peft(state: AdapterState, model: HasNetwork, folder: Path, base: str = "") -> None:
    """Write an adapter as PEFT does. base: name or path of the exported model there.

    Raises ModelError for what those files cannot hold.
    """
    if state.whole:
        raise ModelError(
            f"PEFT's files hold low-rank matrices, and this adapter also trained "
            f"{next(iter(state.whole))} as a whole; merge it instead (`transduce merge`)"
        )
    known = {link.place: link for link in links(model)}
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    scales: dict[str, float] = {}
    for place, one in state.low_rank.items():
        if place not in known:
            raise ModelError(f"{place} has an adapter, and PEFT's files have no name for it")
        for name, part in _to_theirs(known[place], one).items():
            tensors[f"{PREFIX}{name}{A}"] = part.A_RD
            tensors[f"{PREFIX}{name}{B}"] = part.B_FR
            if part.magnitude_F is not None:
                tensors[f"{PREFIX}{name}{MAGNITUDE}"] = part.magnitude_F
            ranks[name], scales[name] = len(part.A_RD), part.scale
    rank, scale = (Counter(values.values()).most_common(1)[0][0] for values in (ranks, scales))
    make_folder(folder)
    write_tensors(folder / WEIGHTS, {k: v.cpu().contiguous() for k, v in tensors.items()}, {})
    config = {
        "peft_type": "LORA",
        "task_type": TASKS[model.recipe.task],
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "target_modules": sorted(ranks),
        "rank_pattern": {name: own for name, own in ranks.items() if own != rank},
        "alpha_pattern": {
            name: scales[name] * ranks[name]
            for name in ranks
            if not math.isclose(scales[name] * ranks[name], scale * rank)
        },
        "use_dora": any(one.magnitude_F is not None for one in state.low_rank.values()),
        "use_rslora": False,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "inference_mode": True,
    }
    write_json(folder / CONFIG, config)


def _to_theirs(link: Link, one: LowRankWeights) -> dict[str, LowRankWeights]:
    A_RD = one.A_RD.cpu() if link.columns is None else one.A_RD.cpu()[:, link.columns]
    B_FR, magnitude_F = one.B_FR.cpu(), one.magnitude_F
    magnitude_F = None if magnitude_F is None else magnitude_F.cpu()
    if link.rows is not None:
        B_FR = B_FR[link.rows]
        magnitude_F = None if magnitude_F is None else magnitude_F[link.rows]
    count = len(link.theirs)
    lengths = [None] * count if magnitude_F is None else magnitude_F.chunk(count)
    return {
        name: LowRankWeights(A_RD.clone(), B, one.scale, length)
        for name, B, length in zip(link.theirs, B_FR.chunk(count), lengths, strict=True)
    }


def read_peft(folder: Path, model: HasNetwork) -> Adapter:
    """The adapter of PEFT's files, for a model. Raises ModelError for what has no equal in ours."""
    config = _read_config(folder)
    if not (folder / WEIGHTS).is_file():
        raise ModelError(
            f"{folder} has no {WEIGHTS}; a pickle (adapter_model.bin) is not read: save it as "
            f"safetensors"
        )
    tensors, _ = read_tensors(folder / WEIGHTS)
    found: dict[str, LowRankWeights] = {}
    taken: set[str] = set()
    weights, targets = weights_of(model.network), adaptable(model.network)
    for link in links(model):
        parts = [_part(tensors, name, config, taken) for name in link.theirs]
        if any(part is not None for part in parts):
            matrix_FD = targets[link.place].of(weights).cpu()
            found[link.place] = _to_ours(link, parts, matrix_FD)
    for name in tensors:
        if name not in taken:
            raise ModelError(
                f"{folder / WEIGHTS} has {name}, which has no place in this model; nothing is "
                f"left out of an adapter"
            )
    return Adapter(folder, AdapterState(found))


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
        kind = config.get("peft_type")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"{folder / CONFIG} cannot be read: {error}") from None
    if kind != "LORA":
        raise ModelError(f"{folder / CONFIG} is of peft_type {kind}; only LORA is read")
    for key in REFUSED:
        if config.get(key):
            raise ModelError(f"{folder / CONFIG} has {key}, which transduce has no equal of")
    if config.get("bias", "none") != "none":
        raise ModelError(f"{folder / CONFIG} has bias: {config['bias']}; only none is read")
    if config.get("init_lora_weights", True) not in HARMLESS:
        raise ModelError(
            f"{folder / CONFIG} has init_lora_weights: {config['init_lora_weights']}, which "
            f"changes the model beneath the adapter; save it converted to plain LoRA"
        )
    return dict(config)


def _part(
    tensors: Mapping[str, Tensor], name: str, config: Mapping[str, Any], taken: set[str]
) -> LowRankWeights | None:
    """The adapter of one matrix there; None: it has none."""
    keys = [f"{PREFIX}{name}{end}" for end in (A, B, MAGNITUDE)]
    if keys[0] not in tensors or keys[1] not in tensors:
        return None
    length = next((k for k in (keys[2], f"{keys[2]}.weight") if k in tensors), None)
    taken |= {*keys[:2], *([length] if length else [])}
    A_RD, B_FR = (tensors[key].float() for key in keys[:2])
    rank = len(A_RD)
    alpha = _setting(config, "alpha_pattern", name, config.get("lora_alpha", 8))
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    if bool(config.get("use_dora")) != (length is not None):
        raise ModelError(f"the adapter of {name} has use_dora, but not the magnitudes of DoRA")
    return LowRankWeights(A_RD, B_FR, scale, tensors[length].float() if length else None)


def _setting(config: Mapping[str, Any], key: str, name: str, usual: Any) -> float:
    """A setting of one matrix: of the first pattern that is the end of its name, as in PEFT.

    Patterns there are regular expressions, of which those of strangers may never end.
    """
    for pattern, value in (config.get(key) or {}).items():
        if not PLAIN.fullmatch(pattern):
            raise ModelError(
                f"{key} of the adapter has the regular expression {pattern[:40]!r}; write out the "
                f"names of the modules"
            )
        if name == pattern or name.endswith(f".{pattern}"):
            return float(value)
    return float(usual)


def _to_ours(link: Link, parts: list[LowRankWeights | None], matrix_FD: Tensor) -> LowRankWeights:
    """One adapter of our matrix; of two with an A each, the ranks add up."""
    rows = matrix_FD.chunk(len(parts))
    given = [part for part in parts if part is not None]
    first = given[0]
    alike = len(given) == len(parts) and all(
        part.scale == first.scale and torch.equal(part.A_RD, first.A_RD) for part in given
    )
    if alike:
        A_RD, B_FR, scale = first.A_RD, torch.cat([part.B_FR for part in given]), first.scale
    else:
        A_RD, scale = torch.cat([part.A_RD for part in given]), 1.0
        B_FR = torch.zeros(len(matrix_FD), len(A_RD))
        top = left = 0
        for part, own in zip(parts, rows, strict=True):
            if part is not None:
                rank = len(part.A_RD)
                B_FR[top : top + len(own), left : left + rank] = part.scale * part.B_FR
                left += rank
            top += len(own)
    magnitude_F = None
    if first.magnitude_F is not None:
        lengths = [
            row_norms(own) if part is None or part.magnitude_F is None else part.magnitude_F
            for part, own in zip(parts, rows, strict=True)
        ]
        magnitude_F = torch.cat(lengths)
    if link.columns is not None:
        A_RD = A_RD[:, link.columns.argsort()]
    if link.rows is not None:
        back = link.rows.argsort()
        B_FR = B_FR[back]
        magnitude_F = None if magnitude_F is None else magnitude_F[back]
    return LowRankWeights(A_RD.contiguous(), B_FR.contiguous(), scale, magnitude_F)


# ------------------------------------------------------------------------- names of matrices there
#
# Matrices of our Transformers and of their equals in Hugging Face's transformers. Marian, Pegasus
# and Blenderbot are encoder-decoders; Llama and Granite language models. Where sines fill the first
# half of the features there, and alternate with cosines in ours, all features of the residual
# stream change places; of rotary positions, the features of each head.

ATTENTION = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}


class Link(NamedTuple):
    """One matrix of ours, and the one there, or two whose rows follow each other."""

    place: str
    theirs: tuple[str, ...]
    columns: Tensor | None = None
    """Which of our columns is each column there; None: the same."""
    rows: Tensor | None = None


def links(model: HasNetwork) -> list[Link]:
    """All matrices that have an equal there. Raises ModelError where a class has none."""
    settings = model.recipe.model
    parts = {name: part for name, part in settings.parts.items() if part is not None}
    for name, part in parts.items():
        if not isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder):
            raise _none(f"its {name} is {part.kind}")
        if part.is_pruned:
            raise _none(f"heads of its {name} were pruned")
    decoder = parts.get("decoder")
    if not isinstance(decoder, recipe.TransformerDecoder):
        raise _none("it has no decoder")
    if model.recipe.audio is not None:
        raise _none("its sources are audio")
    if model.recipe.task == "language_modeling":
        return list(_language_model(settings.width, decoder))
    return list(_encoder_decoder(settings.width, parts))


def _encoder_decoder(
    width: int, parts: dict[str, recipe.Encoder | recipe.Decoder]
) -> Iterator[Link]:
    for side, part in parts.items():
        assert isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder)
        reasons = {
            f"{side} has norm: {part.norm}": part.norm != "layer",
            f"{side} has positions: {part.positions}": part.positions
            not in ("sinusoidal", "learned"),
            f"{side} has combine: {part.combine}": part.combine != "add",
            f"{side} has activation: {part.activation}": part.activation == "swiglu",
        }
        for reason, holds in reasons.items():
            if holds:
                raise _none(reason)
        halves = _halves(width) if part.positions == "sinusoidal" else None
        kinds = list(ATTENTION)[: 1 if side == "encoder" else 2]
        for number in range(part.layers):
            ours, theirs = f"{side}.blocks.{number}", f"model.{side}.layers.{number}"
            for kind in kinds:
                above = f"{theirs}.{ATTENTION[kind]}"
                for one in "qkv":
                    yield Link(
                        f"{ours}.{kind}.in_projection.{one}", (f"{above}.{one}_proj",), halves
                    )
                yield Link(f"{ours}.{kind}.out_projection", (f"{above}.out_proj",), rows=halves)
            yield Link(f"{ours}.feed_forward.expand", (f"{theirs}.fc1",), halves)
            yield Link(f"{ours}.feed_forward.contract", (f"{theirs}.fc2",), rows=halves)


def _language_model(width: int, part: recipe.TransformerDecoder) -> Iterator[Link]:
    wanted = {"norm": "rms", "norm_position": "pre", "activation": "swiglu", "positions": "rotary"}
    for key, value in wanted.items():
        if (found := getattr(part, key)) != value:
            raise _none(f"it has {key}: {found}, and Llama and Granite have {value}")
    turned = _turned(width, part.heads)
    for number in range(part.layers):
        ours, theirs = f"decoder.blocks.{number}", f"model.layers.{number}"
        for one in "qkv":
            place = f"{ours}.self_attention.in_projection.{one}"
            yield Link(
                place, (f"{theirs}.self_attn.{one}_proj",), rows=turned if one != "v" else None
            )
        yield Link(f"{ours}.self_attention.out_projection", (f"{theirs}.self_attn.o_proj",))
        gates = (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj")
        yield Link(f"{ours}.feed_forward.expand", gates)
        yield Link(f"{ours}.feed_forward.contract", (f"{theirs}.mlp.down_proj",))


def _halves(width: int) -> Tensor:
    return torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])


def _turned(width: int, heads: int) -> Tensor:
    """Pairs that are turned together are neighbours in ours, and the halves of a head there."""
    return torch.arange(width).view(heads, -1, 2).transpose(1, 2).flatten()


def _none(reason: str) -> ModelError:
    return ModelError(
        f"PEFT's files name the matrices of a class of Hugging Face's transformers, and none is "
        f"equal to this model: {reason}"
    )
