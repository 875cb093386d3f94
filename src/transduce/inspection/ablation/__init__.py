"""Ablation: what each attention head is worth, and models without those that are worth little."""
