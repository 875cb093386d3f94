"""Text: lines and columns of files, CoNLL-U, the Hugging Face hub, Unicode normalisation, source
tags.
"""
