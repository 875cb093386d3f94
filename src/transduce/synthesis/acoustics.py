"""What lies between a mouth and a microphone: a room that echoes, noise, pauses, a loudness."""

from __future__ import annotations

import numpy as np

from transduce.data.audio.recording import Samples

PAUSES = (0.05, 0.4)  # seconds before and after what is said
ECHO = (0.1, 0.4)  # seconds in which a room's audio falls by 60 dB
ECHO_LEVEL = (0.0, 0.5)  # of the tail, against the direct audio
NOISE = (12.0, 40.0)  # dB of speech above noise
COLOUR = (0.0, 0.95)  # from white noise to a rumble
PEAK = (0.2, 0.9)


def recorded(
    samples: Samples, rate: int, generator: np.random.Generator, pauses: bool = True
) -> tuple[Samples, float]:
    """A voice as it might be recorded, and the seconds of pause before it."""
    draw = generator.uniform
    before, after = draw(*PAUSES, size=2) if pauses else (0.0, 0.0)
    quiet = np.zeros(round(before * rate)), np.zeros(round(after * rate))
    audio = np.concatenate((quiet[0], samples, quiet[1]))
    audio = echoed(audio, rate, draw(*ECHO), draw(*ECHO_LEVEL), generator)
    audio = with_noise(audio, draw(*NOISE), draw(*COLOUR), generator)
    loudest = np.abs(audio).max(initial=1e-9)
    return (draw(*PEAK) / loudest * audio).astype(np.float32), len(quiet[0]) / rate


def echoed(
    samples: Samples, rate: int, decay: float, level: float, generator: np.random.Generator
) -> Samples:
    """With a tail of noise that falls by 60 dB in `decay` seconds: a room's simplest model."""
    times = np.arange(round(decay * rate)) / rate
    tail = generator.standard_normal(len(times)) * 10 ** (-3 * times / decay)
    impulse = level * tail / max(float(np.sqrt((tail**2).sum())), 1e-9)
    impulse[0] = 1.0
    size = 1 << (len(samples) + len(impulse) - 2).bit_length()  # fast, and no less than needed
    spectrum = np.fft.rfft(samples, size) * np.fft.rfft(impulse, size)
    return np.fft.irfft(spectrum, size)[: len(samples)].astype(np.float32)


def with_noise(
    samples: Samples, decibels: float, colour: float, generator: np.random.Generator
) -> Samples:
    """With noise so many dB below the audio, whose power falls towards high frequencies."""
    size = 1 << (len(samples) - 1).bit_length()
    white = np.fft.rfft(generator.standard_normal(size))
    # One pole, in the frequency domain.
    angle = np.linspace(0, np.pi, len(white))
    noise = np.fft.irfft(white / np.abs(1 - colour * np.exp(-1j * angle)), size)[: len(samples)]
    heard = samples[np.abs(samples) > 1e-3]
    power = float((heard**2).mean()) if len(heard) else 1.0
    scale = np.sqrt(power / max(float((noise**2).mean()), 1e-12)) * 10 ** (-decibels / 20)
    made: Samples = (samples + scale * noise).astype(np.float32)
    return made
