"""Write an embedding for Axolotl, which trains models of transformers 5."""

from rope_xp.configs.writers import Options
from rope_xp.configs.writers.transformers import transformers_keys
from rope_xp.errors import wrong_value
from rope_xp.types import Embedding, Values


def axolotl_keys(rope: Embedding, options: Options) -> Values:
    """A key of Axolotl's YAML file. Its values become attributes of the config of transformers, one by one."""
    if rope._provenance.path:
        raise wrong_value(
            f"the embedding must be that of the config itself for Axolotl, which replaces a part as a whole; "
            f"got {'.'.join(rope._provenance.path)}"
        )
    return {"overrides_of_model_config": {"rope_parameters": transformers_keys(rope, options)}}
