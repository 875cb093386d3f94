"""Whisper-shaped models: prompts for language and task, windows of 30 s."""

from transduce.tasks.whisper.model import WhisperModel

__all__ = ["WhisperModel"]
