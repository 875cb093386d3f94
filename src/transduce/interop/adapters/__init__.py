"""Adapters in our folders and in PEFT's own files: opening, merging, converting."""

from transduce.interop.adapters.open import export_peft, merge_folder, open_adapter

__all__ = ["export_peft", "merge_folder", "open_adapter"]
