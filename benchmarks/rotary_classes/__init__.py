"""Every rotary class of transformers, compared with `rope_xp.from_config` of the same config."""
