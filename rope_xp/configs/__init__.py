"""Configs: `from_config` reads them, and writers write them for each engine."""
