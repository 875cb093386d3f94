"""Whisper: models whose outputs begin with a prompt, windows of 30 s, import and export.

Its features and convolutions are in `nn`, as any speech model may have them (audio.features:
whisper), and the tokens of its prompt in `data`, which writes them before the targets of training.
"""

from transduce.whisper.model import WhisperModel

__all__ = ["WhisperModel"]
