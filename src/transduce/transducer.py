"""A trained model: load it, run it, save it. Every upper room goes through here."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.cookbook import dump_recipe, parse_recipe
from transduce.data.batches import Batch, collate
from transduce.data.tokens import END, Tokens
from transduce.decoding import search
from transduce.decoding.settings import Settings
from transduce.errors import ModelError, RecipeError, TokensError
from transduce.hardware import pick_device
from transduce.models import Lens, Network, Vocabulary, build
from transduce.models.weights import set_weights, weights_of
from transduce.recipe import (
    Decoder,
    Encoder,
    Recipe,
    RecurrentDecoder,
    TransformerDecoder,
    TransformerEncoder,
)
from transduce.storage import make_folder, read_tensors, write_tensors, write_text

WEIGHTS = "model.safetensors"
BATCH_TOKENS = 8192
ONE_STRING = "run takes a list of sources; for one string call the model itself"


@dataclass(frozen=True)
class Output:
    """What a model made of one source."""

    text: str
    score: float
    tokens: list[str] = field(default_factory=list)
    source_tokens: list[str] = field(default_factory=list)
    log_probability: float = 0.0
    attention: NDArray[np.float32] | None = None
    """Attention to the source: [layers, heads, target tokens, source tokens], END included."""
    alternatives: list[Output] = field(default_factory=list)
    """All nbest hypotheses, this one first; empty unless more than one was asked for."""

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"text": self.text, "score": self.score, "tokens": self.tokens}
        if self.attention is not None:
            values["source_tokens"] = self.source_tokens
            values["attention"] = self.attention.mean(axis=(0, 1)).round(4).tolist()
        if self.alternatives:
            values["nbest"] = [{"text": o.text, "score": o.score} for o in self.alternatives]
        return values


class Transducer:
    """A network with its tokens and its recipe.

    model = transduce.load("runs/multi30k-en-de")
    model("A dog runs.")                            # the best output's text
    model.run(sources, beam=5, nbest=3, attention=True)
    """

    def __init__(
        self, recipe: Recipe, network: Network, source_tokens: Tokens, target_tokens: Tokens
    ) -> None:
        self.recipe = recipe
        self.network = network
        self.source_tokens = source_tokens
        self.target_tokens = target_tokens

    @classmethod
    def create(cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens) -> Transducer:
        """An untrained model of the recipe's shape."""
        size = Vocabulary(len(source_tokens), len(target_tokens))
        return cls(recipe, build(recipe.model, size), source_tokens, target_tokens)

    # ------------------------------------------------------------------------------- use

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def to(self, device: str | torch.device) -> Transducer:
        self.network.to(device)
        return self

    def __call__(self, source: str, **settings: Any) -> str:
        """The best output's text for one source."""
        return self.run([source], **settings)[0].text

    def run(
        self, sources: Sequence[str], *, attention: bool = False, **settings: Any
    ) -> list[Output]:
        """One output a source, in order. The keywords are those of Settings, and `attention`.

        Sources are sorted by length and packed into batches inside; empty ones come back empty.
        """
        sources = _checked(sources)
        chosen = self._settings(settings)
        encoded = self.source_tokens.encode_batch(sources)
        self._check_lengths(sources, encoded)
        outputs = [Output("", 0.0)] * len(encoded)
        filled = [index for index, tokens in enumerate(encoded) if tokens]
        training = self.network.training
        self.network.eval()
        try:
            with torch.inference_mode():
                for indices in _pack(filled, encoded, BATCH_TOKENS // chosen.hypotheses):
                    batch = collate([encoded[i] for i in indices], None, indices)
                    seeds = [_seed(chosen.seed, sources[i]) for i in indices]
                    for index, output in zip(
                        indices, self._decode(batch, chosen, seeds, attention), strict=True
                    ):
                        outputs[index] = output
        finally:
            self.network.train(training)
        return outputs

    def stream(self, sources: Iterable[str], **settings: Any) -> Iterator[Output]:
        """As `run`, over any iterable: the first outputs at once, later ones in larger batches."""
        if isinstance(sources, str):
            raise ModelError(ONE_STRING)
        rest = iter(sources)
        size = 1
        while chunk := list(islice(rest, size)):
            yield from self.run(chunk, **settings)
            size = min(2 * size, 1024)

    def _settings(self, given: dict[str, Any]) -> Settings:
        """What was asked for, and what the recipe says of the rest."""
        known = [f.name for f in fields(Settings)]
        for name in given:
            if name not in known:
                raise ModelError(f"run knows no setting {name}; it knows {', '.join(known)}")
        chosen = Settings(**given)
        decode = self.recipe.decode
        power = chosen.length_penalty
        return replace(
            chosen,
            beam=decode.beam if chosen.beam is None else chosen.beam,
            length_penalty=decode.length_penalty if power is None else power,
        )

    def _check_lengths(self, sources: list[str], encoded: list[list[int]]) -> None:
        encoder, decoder = self.recipe.model.encoder, self.recipe.model.decoder
        rooms = [_room(encoder)]
        if isinstance(decoder, RecurrentDecoder) and decoder.attention == "location":
            rooms.append(decoder.max_positions)
        for source, tokens in zip(sources, encoded, strict=True):
            if len(tokens) + 1 > min(rooms):
                raise ModelError(
                    f"the source that begins {source[:30]!r} has {len(tokens)} tokens; this model "
                    f"has positions for {min(rooms) - 1}: shorten it, or cut it in two"
                )

    def _decode(
        self, batch: Batch, settings: Settings, seeds: list[int], attention: bool
    ) -> list[Output]:
        batch = batch.to(self.device)
        decode = self.recipe.decode
        limits_B = (batch.source_lengths_B * decode.max_ratio).long() + decode.max_extra
        limits_B = limits_B.clamp(1, _room(self.recipe.model.decoder))
        source = (batch.source_BS, batch.source_lengths_B, limits_B)
        power = settings.length_penalty
        assert power is not None
        if settings.sample:
            found = self._sample(batch, limits_B, settings, seeds, power)
        elif settings.hypotheses == 1:
            found = [[h] for h in search.greedy(self.network, *source, power)]
        else:
            found = search.beam(self.network, *source, settings.hypotheses, settings.nbest, power)
        if not all(found):
            raise ModelError("the model's probabilities are no numbers; its weights are damaged")
        maps = self._attention(batch, [best[0] for best in found]) if attention else None
        return [
            self._output(batch, row, hypotheses, maps[row] if maps else None)
            for row, hypotheses in enumerate(found)
        ]

    def _sample(
        self, batch: Batch, limits_B: Tensor, settings: Settings, seeds: list[int], power: float
    ) -> list[list[search.Hypothesis]]:
        """`nbest` independent samples of each source, the likeliest first."""
        drawn = [
            search.sample(
                self.network,
                batch.source_BS,
                batch.source_lengths_B,
                limits_B,
                [seed + turn for seed in seeds],
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                length_penalty=power,
            )
            for turn in range(settings.nbest)
        ]
        return [sorted(of_one, key=lambda h: -h.score) for of_one in zip(*drawn, strict=True)]

    def _attention(
        self, batch: Batch, hypotheses: list[search.Hypothesis]
    ) -> list[NDArray[np.float32]] | None:
        """What each best hypothesis attends to: one more pass, after search at full speed."""
        targets = [h.tokens for h in hypotheses]
        sources = [
            row[: n - 1]
            for row, n in zip(
                batch.source_BS.tolist(), batch.source_lengths_B.tolist(), strict=True
            )
        ]
        forced = collate(sources, targets, batch.lines).to(self.device)
        assert forced.target_BT is not None
        with Lens(self.network, "decoder.*cross_attention", "decoder.attention") as lens:
            self.network(forced.source_BS, forced.source_lengths_B, forced.target_BT[:, :-1])
        if not lens.weights:
            return None
        # Layers may differ in heads only by kind of decoder, never inside one: they stack.
        weights_BLHTS = torch.stack(list(lens.weights.values()), dim=1).float().cpu().numpy()
        return [
            weights_BLHTS[row, :, :, : len(targets[row]) + 1, : len(sources[row]) + 1]
            for row in range(len(targets))
        ]

    def _output(
        self,
        batch: Batch,
        row: int,
        hypotheses: list[search.Hypothesis],
        attention: NDArray[np.float32] | None,
    ) -> Output:
        length = int(batch.source_lengths_B[row])
        source_pieces = self.source_tokens.pieces(batch.source_BS[row, :length].tolist())
        outputs = [
            Output(
                text=self.target_tokens.decode(h.tokens),
                score=h.score,
                tokens=self.target_tokens.pieces([*h.tokens, END]),
                source_tokens=source_pieces,
                log_probability=h.log_probability,
            )
            for h in hypotheses
        ]
        alternatives = outputs if len(outputs) > 1 else []
        return replace(outputs[0], attention=attention, alternatives=alternatives)

    # ------------------------------------------------------------------------------ disk

    def save(self, folder: str | Path) -> None:
        """Write the model folder: recipe, weights, tokens; each file whole or not at all."""
        self.save_frame(Path(folder))
        self.save_weights(Path(folder))

    def save_frame(self, path: Path) -> None:
        """All but the weights; without them nobody takes the folder for a trained model."""
        make_folder(path)
        write_text(path / "recipe.yaml", dump_recipe(self.recipe))
        self.source_tokens.save(path / "source.tokens.json")
        self.target_tokens.save(path / "target.tokens.json")

    def save_weights(self, folder: Path) -> None:
        write_tensors(folder / WEIGHTS, weights_of(self.network), {"format": "transduce 1"})

    def load_weights(self, path: Path) -> None:
        weights, _ = read_tensors(path)
        set_weights(self.network, weights, path)


def load(folder: str | Path, device: str = "cpu") -> Transducer:
    """The trained model in a folder that `transduce train` wrote.

    Raises ModelError that names the file that is missing or does not fit, CheckpointError where
    the weights are damaged, HardwareError where there is no such device.
    """
    path, place = Path(folder), pick_device(device)
    if not (path / WEIGHTS).is_file():
        raise ModelError(_missing(path))
    try:
        recipe = parse_recipe((path / "recipe.yaml").read_text("utf-8"), "recipe.yaml", path)
        source_tokens = Tokens.load(path / "source.tokens.json")
        target_tokens = Tokens.load(path / "target.tokens.json")
    except UnicodeDecodeError:
        raise ModelError(
            f"{path / 'recipe.yaml'} is damaged: it is not UTF-8 text; restore it from a copy"
        ) from None
    except (OSError, RecipeError, TokensError) as error:
        raise ModelError(f"the model folder {path} cannot be used: {error}") from None
    with torch.random.fork_rng(devices=[]):  # the first weights are thrown away: draw none
        model = Transducer.create(recipe, source_tokens, target_tokens)
    model.load_weights(path / WEIGHTS)
    model.network.eval()
    return model.to(place)


def _missing(path: Path) -> str:
    if not path.exists():
        return f"there is no folder {path}; `transduce train` makes one under runs/"
    if (path / "recipe.yaml").exists():
        again = " --resume" if (path / "state").exists() else ""
        return (
            f"{path} has no {WEIGHTS}: its run was stopped before the first validation; go on "
            f"with `transduce train {path}{again}`"
        )
    return f"{path} is not a model folder: it has no {WEIGHTS}"


def _checked(sources: Sequence[str]) -> list[str]:
    if isinstance(sources, str):
        raise ModelError(ONE_STRING)
    listed = list(sources)
    for source in listed:
        if not isinstance(source, str):
            raise ModelError(f"a source is text, not {type(source).__name__}: {source!r:.40}")
    return listed


def _room(part: Encoder | Decoder) -> int:
    """The longest sequence that a part has positions for."""
    if isinstance(part, TransformerEncoder | TransformerDecoder) and part.positions == "learned":
        return part.max_positions
    return sys.maxsize


def _pack(indices: list[int], encoded: list[list[int]], budget: int) -> Iterator[list[int]]:
    """Indices in batches of at most `budget` tokens, padding counted, longest first.

    Longest first: a batch that does not fit memory fails at once, not after an hour.
    """
    batch: list[int] = []
    for index in sorted(indices, key=lambda i: (-len(encoded[i]), i)):
        longest = len(encoded[batch[0]] if batch else encoded[index]) + 1
        if batch and longest * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _seed(seed: int, source: str) -> int:
    """A seed of each sentence's own, so that neighbours do not change what is drawn."""
    return (seed * 1_000_003 + zlib.crc32(source.encode("utf-8", "surrogatepass"))) % 2**62


def read_metrics(folder: Path) -> dict[str, Any]:
    """The metrics.json of a model folder, empty where there is none."""
    try:
        values = json.loads((folder / "metrics.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
