"""Which training pairs are left out: by rules of a recipe, and as repetitions of earlier pairs."""
