"""Word-level knowledge distillation: an objective that learns from a trained model too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from transduce.data.batches.batch import Batch
from transduce.data.tokens.tokenizer import PAD, Tokens
from transduce.errors import ModelError
from transduce.models import EncoderDecoder, TrainableNetwork
from transduce.models.language_model import LanguageModelNetwork
from transduce.models.weights import fingerprint_of, weights_of
from transduce.nn.loss import Loss, Output, distillation_loss
from transduce.recipe import Recipe, Train
from transduce.recipe.model import max_length_of, max_source_length
from transduce.tasks.transduce import load


@dataclass
class Distillation:
    """An objective that is partly the divergence from the distribution of teachers, which are in
    eval mode and have no gradient.
    """

    network: TrainableNetwork
    teachers: Sequence[TrainableNetwork]
    settings: Train

    @property
    def fingerprint(self) -> str:
        """Of the teachers' weights."""
        return " ".join(fingerprint_of(weights_of(one)) for one in self.teachers)

    def __call__(self, batch: Batch) -> Loss:
        settings = self.settings
        assert settings.teacher is not None
        assert batch.target_BT is not None
        learnt = _output(self.network, batch)
        losses = []
        for teacher in self.teachers:
            with torch.no_grad():
                taught = _output(teacher, batch)
            losses.append(
                distillation_loss(
                    learnt,
                    taught,
                    batch.target_BT[:, 1:],
                    settings.teacher.weight,
                    settings.teacher.temperature,
                    settings.label_smoothing,
                    ignore=PAD,
                )
            )
        # A cross-entropy is linear in what teaches: the mean over teachers has the gradient of the
        # divergence from the mean of their distributions, which is that of their ensemble.
        total = torch.stack([loss.total for loss in losses]).mean(0)
        return losses[0]._replace(total=total)


def _output(network: TrainableNetwork, batch: Batch) -> Output:
    """What the network's logits are computed from, with teacher forcing."""
    assert batch.target_BT is not None
    read_BT = batch.target_BT[:, :-1]
    if isinstance(network, LanguageModelNetwork):
        features_BTD = network(read_BT)
    else:
        assert isinstance(network, EncoderDecoder)
        features_BTD = network(batch.source_BS, batch.source_lengths_B, read_BT)
    return Output(network.head.narrow(features_BTD), network.head.weight, network.head.bias)


def load_teachers(
    recipe: Recipe, tokens: tuple[Tokens, Tokens], device: torch.device
) -> list[TrainableNetwork]:
    """The networks of train.teacher, frozen. Raises ModelError where one cannot teach this
    recipe."""
    assert recipe.train.teacher is not None
    return [_load(place, recipe, tokens, device) for place in recipe.train.teacher.models]


def _load(
    folder: str, recipe: Recipe, tokens: tuple[Tokens, Tokens], device: torch.device
) -> TrainableNetwork:
    model = load(folder, str(device), "float32", members=False)
    place = f"train.teacher.model is {folder}"
    if model.recipe.task != recipe.task or model.recipe.audio is not None:
        raise ModelError(
            f"{place}, a model of task: {model.recipe.task}; a teacher needs the task of the "
            f"recipe, {recipe.task}, without audio"
        )
    if model.recipe.model.copies:
        raise ModelError(
            f"{place}, which copies from the source (model.decoder.copying): the student would not "
            f"see that; give another teacher, or train on what it writes"
        )
    if recipe.data.bidirectional and not model.recipe.data.bidirectional:
        raise ModelError(
            f"{place}, which writes from left to right alone, and data.bidirectional is true; give "
            f"a teacher that was trained with it, or leave it out"
        )
    for side, ours, theirs in zip(
        ("source", "target"), tokens, (model.source_tokens, model.target_tokens), strict=True
    ):
        if ours.to_json() != theirs.to_json():
            raise ModelError(
                f"{place}, which has another {side} vocabulary; use the teacher's: "
                f"{_tokens_keys(model.recipe, folder)}"
            )
    special = 1 + recipe.data.bidirectional  # END, and the token that asks for a direction
    longest = recipe.data.max_length + special
    capacity = min(max_source_length(model.recipe.model), max_length_of(model.recipe.model.decoder))
    if capacity < longest:
        raise ModelError(
            f"{place}, which has positions for {capacity} tokens, but data.max_length allows "
            f"{recipe.data.max_length}: set data.max_length={capacity - special}"
        )
    network = model.network
    network.requires_grad_(False)
    return network.eval()


def _tokens_keys(teacher: Recipe, folder: str) -> str:
    if teacher.data.tokens.both is not None:
        return f"data.tokens: {{both: {{file: {folder}/target.tokens.json}}}}"
    sides = ", ".join(f"{s}: {{file: {folder}/{s}.tokens.json}}" for s in ("source", "target"))
    return f"data.tokens: {{{sides}}}"
