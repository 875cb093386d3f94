"""Word-level knowledge distillation: an objective that learns from a trained model too."""

from __future__ import annotations

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
    """An objective that is partly the divergence from the distribution of a teacher, which is in
    eval mode and has no gradient.
    """

    network: TrainableNetwork
    teacher: TrainableNetwork
    settings: Train

    @property
    def fingerprint(self) -> str:
        """Of the teacher's weights."""
        return fingerprint_of(weights_of(self.teacher))

    def __call__(self, batch: Batch) -> Loss:
        settings = self.settings
        assert settings.teacher is not None
        assert batch.target_BT is not None
        with torch.no_grad():
            taught = _output(self.teacher, batch)
        return distillation_loss(
            _output(self.network, batch),
            taught,
            batch.target_BT[:, 1:],
            settings.teacher.weight,
            settings.teacher.temperature,
            settings.label_smoothing,
            ignore=PAD,
        )


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


def load_teacher(
    recipe: Recipe, tokens: tuple[Tokens, Tokens], device: torch.device
) -> TrainableNetwork:
    """The network of train.teacher, frozen. Raises ModelError where it cannot teach this recipe."""
    settings = recipe.train.teacher
    assert settings is not None
    model = load(settings.model, str(device), "float32")
    place = f"train.teacher.model is {settings.model}"
    if model.recipe.task != recipe.task or model.recipe.audio is not None:
        raise ModelError(
            f"{place}, a model of task: {model.recipe.task}; a teacher needs the task of the "
            f"recipe, {recipe.task}, without audio"
        )
    for side, ours, theirs in zip(
        ("source", "target"), tokens, (model.source_tokens, model.target_tokens), strict=True
    ):
        if ours.to_json() != theirs.to_json():
            raise ModelError(
                f"{place}, which has another {side} vocabulary; use the teacher's: "
                f"{_tokens_keys(model.recipe, settings.model)}"
            )
    longest = recipe.data.max_length + 1
    capacity = min(max_source_length(model.recipe.model), max_length_of(model.recipe.model.decoder))
    if capacity < longest:
        raise ModelError(
            f"{place}, which has positions for {capacity} tokens, but data.max_length allows "
            f"{longest - 1}: set data.max_length={capacity - 1}"
        )
    network = model.network
    network.requires_grad_(False)
    return network.eval()


def _tokens_keys(teacher: Recipe, folder: str) -> str:
    if teacher.data.tokens.both is not None:
        return f"data.tokens: {{both: {{file: {folder}/target.tokens.json}}}}"
    sides = ", ".join(f"{s}: {{file: {folder}/{s}.tokens.json}}" for s in ("source", "target"))
    return f"data.tokens: {{{sides}}}"
