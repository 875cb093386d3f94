"""Fine-tuning: training that starts from a trained model, frozen parts, adapters."""
