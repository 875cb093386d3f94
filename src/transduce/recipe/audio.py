"""The `audio` section of a recipe: sample rate, log-mel features, augmentation, prompts."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from transduce.recipe.section import Fraction, InvalidValue, Section

MIN_MEL_BANDS = 7  # two convolutions of kernel 3 and stride 2 need at least these
MIN_MEL_BANDS_OF_EIGHT = 15  # and three, of audio.subsampling: 8
SUBSAMPLING = {"kaldi": 4, "whisper": 2}  # frames per encoder state, by audio.features
WHISPER = {
    "sample_rate": 16_000,
    "window": 25.0,
    "hop": 10.0,
    "channels": None,
    "subsampling": None,
}
WHISPER_BANDS = 128  # more of them would be empty


class SpecAugment(Section):
    """SpecAugment (Park et al. 2019): training masks random spans of time and frequency."""

    time_masks: NonNegativeInt = Field(2, description="number of time masks per utterance")
    time_mask_frames: NonNegativeInt = Field(100, description="maximum frames of a time mask")
    time_mask_share: Fraction = Field(
        0.2, description="maximum share of an utterance that one time mask covers"
    )
    frequency_masks: NonNegativeInt = Field(
        2, description="number of frequency masks per utterance"
    )
    frequency_mask_bands: NonNegativeInt = Field(
        27, description="maximum mel bands of a frequency mask"
    )


Decibels = Annotated[float, Field(ge=-20, le=120)]


Noise = TypeVar("Noise", "BackgroundNoise", "RecordedNoise")


def _lowest_first(noise: Noise) -> Noise:
    """Of a section with the range of signal-to-noise ratios."""
    low, high = noise.snr
    if low > high:
        raise InvalidValue("snr", f"is {[low, high]}; give the lowest first")
    return noise


class BackgroundNoise(Section):
    """Background noise: training adds noise to recordings, and noise alone before and after them,
    as around live speech."""

    share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="share of recordings that get noise, drawn anew each time"
    )
    before: Annotated[float, Field(ge=0, le=60)] = Field(
        1.0, description="maximum seconds of noise before the recording"
    )
    after: Annotated[float, Field(ge=0, le=60)] = Field(
        2.0, description="maximum seconds of noise after the recording"
    )
    snr: Annotated[list[Decibels], Field(min_length=2, max_length=2)] = Field(
        [30.0, 60.0],
        description="lowest and highest signal-to-noise ratio, in decibels; one is drawn for each "
        "recording",
    )

    _check_order = model_validator(mode="after")(_lowest_first)


class RecordedNoise(Section):
    """Recorded noise: training adds noise from a folder of recordings."""

    folder: Annotated[str, "a folder"] = Field(
        description="folder of recordings of noise, and their subfolders; relative paths start at "
        "data.folder"
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="share of recordings that get noise, drawn anew in each epoch"
    )
    snr: Annotated[list[Decibels], Field(min_length=2, max_length=2)] = Field(
        [5.0, 20.0],
        description="lowest and highest signal-to-noise ratio, in decibels; one is drawn for each "
        "recording",
    )

    _check_order = model_validator(mode="after")(_lowest_first)


class Reverberation(Section):
    """Reverberation: training convolves recordings with room impulse responses."""

    folder: Annotated[str, "a folder"] = Field(
        description="folder of room impulse responses as audio files, and its subfolders; relative "
        "paths start at data.folder"
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="share of recordings that sound as in a room, drawn anew in each epoch"
    )


TokenId = Annotated[int, Field(ge=0)]


class Prompt(Section):
    """Whisper's prompt: outputs begin with tokens for language, task and timestamps."""

    language: str | None = Field(
        None,
        description="language of the recordings, such as en, where `run` is given none; null: "
        "detected; training needs one",
    )
    task: Literal["transcribe", "translate"] = Field(
        "transcribe", description="transcribe, or translate to English"
    )
    timestamps: bool = Field(
        True,
        description="predict timestamps where `run` does not say; false suits models that were "
        "fine-tuned, as targets of training have none",
    )
    multilingual: bool = Field(
        True, description="whether the prompt has language and task; false: English only"
    )
    suppress: list[TokenId] = Field(
        [], description="tokens that are never chosen (ids of this model's vocabulary)"
    )
    suppress_first: list[TokenId] = Field(
        [], description="tokens that are not chosen as the first of an output"
    )
    alignment_heads: list[Annotated[list[TokenId], Field(min_length=2, max_length=2)]] = Field(
        [],
        description="cross-attention heads that give word timestamps, each as layer and head; "
        "empty: those of the upper half of the layers",
    )


class Audio(Section):
    """Audio features: mono, log-mel filterbank, subsampled with two strided convolutions."""

    features: Literal["kaldi", "whisper"] = Field(
        "kaldi",
        description="log-mel features and the convolutions after them: kaldi (Kaldi's filterbank, "
        "normalized, subsampled by 4 or 2), or whisper (Whisper's features, subsampled by 2)",
    )
    pad_to: Annotated[float, Field(gt=0, le=600)] | None = Field(
        None,
        description="for features: whisper, pad every recording with silence to so many seconds "
        "(Whisper: 30); null: off",
    )
    prompt: Prompt | None = Field(
        None,
        description="outputs begin with tokens for language, task and timestamps, as Whisper's; "
        "needs the vocabulary of an imported Whisper; null: off",
    )

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
    subsampling: Literal[2, 4, 8] | None = Field(
        None,
        description="frames per encoder state; 2 for short recordings with many letters, for which "
        "CTC needs more states; 8 for long ones with subwords, in half of the time; null: 4 for "
        "features: kaldi, 2 for whisper",
    )
    segment: Annotated[float, Field(ge=1, le=3600)] | None = Field(
        None,
        description="maximum length of a segment, in seconds, when the model is run: longer "
        "recordings are cut at silences, such as 15 where training had few longer ones; null, or "
        "longer than that: data.max_length",
    )
    speed_perturbation: list[Annotated[float, Field(ge=0.5, le=2.0)]] = Field(
        [],
        description="speed perturbation: training draws one of these speeds for each utterance, "
        "such as [0.9, 1.0, 1.1]; empty: off",
    )
    background_noise: BackgroundNoise | None = Field(
        None,
        description="training adds noise to recordings, and before and after them, as around live "
        "speech; null: off",
    )
    recorded_noise: RecordedNoise | None = Field(
        None, description="training adds noise from a folder of recordings; null: off"
    )
    reverberation: Reverberation | None = Field(
        None, description="training adds the sound of rooms, from impulse responses; null: off"
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
        if self.subsampling == 8 and self.mel_bands < MIN_MEL_BANDS_OF_EIGHT:
            raise InvalidValue(
                "mel_bands",
                f"is {self.mel_bands}, and audio.subsampling: 8 needs {MIN_MEL_BANDS_OF_EIGHT} at "
                f"least; raise it",
            )
        return self

    @model_validator(mode="after")
    def _check_features(self) -> Self:
        if self.features != "whisper":
            for key in ("pad_to", "prompt"):
                if getattr(self, key) is not None:
                    raise InvalidValue(key, "is for audio.features: whisper; leave it out")
            return self
        for key, fixed in WHISPER.items():
            if getattr(self, key) != fixed:
                raise InvalidValue(
                    key,
                    f"is {getattr(self, key)}, but audio.features is whisper, where it is fixed; "
                    f"leave it out",
                )
        if self.normalize != "utterance":
            raise InvalidValue(
                "normalize",
                f"is {self.normalize}, but audio.features is whisper, which has a normalization "
                f"of its own; leave it out",
            )
        if self.background_noise is not None and self.pad_to is not None:
            raise InvalidValue(
                "background_noise",
                "would move speech beyond the end of what audio.pad_to keeps; leave it out",
            )
        if self.mel_bands > WHISPER_BANDS:
            raise InvalidValue(
                "mel_bands", f"is {self.mel_bands}; for features: whisper at most {WHISPER_BANDS}"
            )
        return self

    @property
    def frames_per_state(self) -> int:
        return self.subsampling or SUBSAMPLING[self.features]

    @property
    def state_ms(self) -> float:
        """Milliseconds from one encoder state to the next."""
        return 1000 * self.frames_per_state * self.hop_samples / self.sample_rate

    def max_states(self, frames: int) -> int:
        """The most encoder states of so many frames."""
        if self.features == "kaldi":
            return frames // self.frames_per_state
        if self.pad_to is not None:
            frames = round(self.pad_to * self.frames_a_second)
        return -(-frames // self.frames_per_state)

    def longest_in_training(self, frames: int) -> int:
        """Frames of a recording of so many, at the lowest speed and with the most noise."""
        longest = frames / min([1.0, *self.speed_perturbation])
        if self.background_noise is not None:
            around = self.background_noise.before + self.background_noise.after
            longest += around * self.frames_a_second
        return math.ceil(longest)

    @property
    def hop_samples(self) -> int:
        """Samples from one frame to the next."""
        return int(self.sample_rate * 0.001 * self.hop)

    @property
    def window_samples(self) -> int:
        """Samples of the analysis window."""
        return int(self.sample_rate * 0.001 * self.window)

    @property
    def frames_a_second(self) -> float:
        return self.sample_rate / self.hop_samples
