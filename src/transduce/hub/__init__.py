"""Models on the Hugging Face hub: hf:// addresses, download into its cache, publishing."""
