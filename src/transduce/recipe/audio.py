"""The part of a recipe that says how audio is heard."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from transduce.recipe.section import InvalidValue, Section, Share

LEAST_BANDS = 7  # what two convolutions of 3 leave something of
SUBSAMPLING = 4  # frames that become one


class Augment(Section):
    """SpecAugment (Park et al. 2019): in training, parts of an utterance are wiped out."""

    time_masks: NonNegativeInt = Field(2, description="stretches of time that are wiped out")
    time_mask_frames: NonNegativeInt = Field(100, description="the most frames of a stretch")
    time_mask_share: Share = Field(0.2, description="the most of an utterance that a stretch takes")
    frequency_masks: NonNegativeInt = Field(2, description="bands of frequency that are wiped out")
    frequency_mask_bands: NonNegativeInt = Field(27, description="the most mel bands of one")


class Audio(Section):
    """How audio is heard: one channel, log-mel features, four frames made one by convolutions."""

    sample_rate: Annotated[int, Field(ge=2_000, le=96_000)] = Field(
        16_000, description="samples a second; recordings of other rates are resampled"
    )
    mel_bands: Annotated[int, Field(ge=LEAST_BANDS, le=1000)] = Field(
        80, description="mel bands of a frame"
    )
    window: Annotated[float, Field(gt=0, le=1000)] = Field(
        25.0, description="milliseconds that a frame sees"
    )
    hop: PositiveFloat = Field(10.0, description="milliseconds from one frame to the next")
    normalize: Literal["utterance", "global"] = Field(
        "utterance",
        description="mean and variance of each band: an utterance's own, or the training corpus's",
    )
    channels: PositiveInt | None = Field(
        None, description="of the two convolutions that make four frames one; null: model.width"
    )
    speed_perturbation: list[Annotated[float, Field(ge=0.5, le=2.0)]] = Field(
        [], description="speeds at which utterances are learnt, such as [0.9, 1.0, 1.1]"
    )
    spec_augment: Augment | None = Field(Augment(), description="SpecAugment; null: none")

    @model_validator(mode="after")
    def _frames_fit(self) -> Self:
        if self.hop > self.window:
            raise InvalidValue(
                "hop", f"is {self.hop} ms; frames of {self.window} ms would leave gaps"
            )
        if self.hop_samples < 1 or self.window * self.sample_rate < 2_000:
            raise InvalidValue("window", f"is {self.window} ms, which is hardly a sample; raise it")
        return self

    @property
    def hop_samples(self) -> int:
        """Samples from one frame to the next."""
        return int(self.sample_rate * 0.001 * self.hop)

    @property
    def frames_a_second(self) -> float:
        return self.sample_rate / self.hop_samples
