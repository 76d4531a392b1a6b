"""The table of model families: one row for each `model_type`."""
