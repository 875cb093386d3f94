"""Transducers (RNN-T): the joint network, the loss over all alignments, search frame by frame."""
