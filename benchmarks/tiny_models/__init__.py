"""Tiny whole models of transformers with random weights: built, compared with and without rope_xp, and timed."""
