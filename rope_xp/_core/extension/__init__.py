"""`extend`: an embedding for longer sequences by a scaling rule, and a report of the rules to choose from."""
