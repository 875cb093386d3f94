"""The `audio` section of a recipe: sample rate, log-mel features, augmentation."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from transduce.recipe.section import InvalidValue, Section, Share

MIN_MEL_BANDS = 7  # two convolutions of kernel 3 and stride 2 need at least these
SUBSAMPLING = 4  # frames per encoder state


class SpecAugment(Section):
    """SpecAugment (Park et al. 2019): training masks random spans of time and frequency."""

    time_masks: NonNegativeInt = Field(2, description="number of time masks per utterance")
    time_mask_frames: NonNegativeInt = Field(100, description="maximum frames of a time mask")
    time_mask_share: Share = Field(
        0.2, description="maximum share of an utterance that one time mask covers"
    )
    frequency_masks: NonNegativeInt = Field(
        2, description="number of frequency masks per utterance"
    )
    frequency_mask_bands: NonNegativeInt = Field(
        27, description="maximum mel bands of a frequency mask"
    )


class Audio(Section):
    """Audio features: mono, log-mel filterbank, subsampled by 4 with two strided convolutions."""

    sample_rate: Annotated[int, Field(ge=2_000, le=96_000)] = Field(
        16_000, description="sample rate in Hz; recordings of other rates are resampled"
    )
    mel_bands: Annotated[int, Field(ge=MIN_MEL_BANDS, le=1000)] = Field(
        80, description="number of mel bands (filterbank channels) per frame"
    )
    window: Annotated[float, Field(gt=0, le=1000)] = Field(
        25.0, description="length of the analysis window, in milliseconds"
    )
    hop: PositiveFloat = Field(
        10.0, description="hop length: milliseconds from one frame to the next"
    )
    normalize: Literal["utterance", "global"] = Field(
        "utterance",
        description="mean and variance normalization of each mel band: per utterance, or with the "
        "statistics of the training corpus (global)",
    )
    channels: PositiveInt | None = Field(
        None, description="channels of the subsampling convolutions; null: model.width"
    )
    speed_perturbation: list[Annotated[float, Field(ge=0.5, le=2.0)]] = Field(
        [],
        description="speed perturbation: training draws one of these speeds for each utterance, "
        "such as [0.9, 1.0, 1.1]; empty: off",
    )
    spec_augment: SpecAugment | None = Field(
        SpecAugment(), description="SpecAugment: masks of time and frequency; null: off"
    )

    @model_validator(mode="after")
    def _check_frames(self) -> Self:
        if self.hop > self.window:
            raise InvalidValue(
                "hop",
                f"is {self.hop} ms, longer than audio.window, {self.window} ms, which leaves gaps; "
                f"lower it",
            )
        if self.hop_samples < 1 or self.window * self.sample_rate < 2_000:
            raise InvalidValue(
                "window",
                f"is {self.window} ms, which is less than two samples at audio.sample_rate; "
                f"raise it",
            )
        return self

    @property
    def hop_samples(self) -> int:
        """Samples from one frame to the next."""
        return int(self.sample_rate * 0.001 * self.hop)

    @property
    def frames_a_second(self) -> float:
        return self.sample_rate / self.hop_samples
