"""Simulated recording conditions: reverberation, additive noise, pauses and loudness."""

from __future__ import annotations

import numpy as np

from transduce.data.audio.recording import Samples

PAUSES = (0.05, 0.4)  # seconds of pause before and after the speech
ECHO = (0.1, 0.4)  # reverberation time (RT60): seconds in which sound falls by 60 dB
ECHO_LEVEL = (0.0, 0.5)  # level of the reverberation relative to the direct sound
NOISE = (12.0, 40.0)  # signal-to-noise ratio in dB
COLOUR = (0.0, 0.95)  # from white noise to a rumble
PEAK = (0.2, 0.9)


def simulate_recording(
    samples: Samples, rate: int, generator: np.random.Generator, pauses: bool = True
) -> tuple[Samples, float]:
    """Clean speech as it might be simulate_recording, and the seconds of pause before it."""
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
    """With reverberation: noise that decays by 60 dB in `decay` seconds, the simplest room
    model.
    """
    times = np.arange(round(decay * rate)) / rate
    tail = generator.standard_normal(len(times)) * 10 ** (-3 * times / decay)
    impulse = level * tail / max(float(np.sqrt((tail**2).sum())), 1e-9)
    impulse[0] = 1.0
    size = 1 << (len(samples) + len(impulse) - 2).bit_length()  # a power of two for the FFT
    spectrum = np.fft.rfft(samples, size) * np.fft.rfft(impulse, size)
    return np.fft.irfft(spectrum, size)[: len(samples)].astype(np.float32)


def with_noise(
    samples: Samples, decibels: float, colour: float, generator: np.random.Generator
) -> Samples:
    """With coloured noise at this signal-to-noise ratio, with less power at high frequencies."""
    size = 1 << (len(samples) - 1).bit_length()
    white = np.fft.rfft(generator.standard_normal(size))
    # A one-pole filter, in the frequency domain.
    angle = np.linspace(0, np.pi, len(white))
    noise = np.fft.irfft(white / np.abs(1 - colour * np.exp(-1j * angle)), size)[: len(samples)]
    loud = samples[np.abs(samples) > 1e-3]
    power = float((loud**2).mean()) if len(loud) else 1.0
    scale = np.sqrt(power / max(float((noise**2).mean()), 1e-12)) * 10 ** (-decibels / 20)
    made: Samples = (samples + scale * noise).astype(np.float32)
    return made
