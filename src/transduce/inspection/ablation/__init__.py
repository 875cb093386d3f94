"""Ablation: how much each attention head matters, and models without those that matter little."""
