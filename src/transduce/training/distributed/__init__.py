"""Training on several processes: who they are, what they share, and FSDP."""
