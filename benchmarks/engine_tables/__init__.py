"""How the table of each engine is made: one module for each, named as `benchmarks/engines.py` takes it."""
