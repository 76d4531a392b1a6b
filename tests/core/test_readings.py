"""What is read and written says what is recorded in `goldens`, which `make_readings.py` writes."""

import pytest
import sentences
from configs import recorded

from rope_xp.configs.families.model_types import FAMILIES

EXAMPLES = recorded("examples") | recorded("checkpoints") | recorded("readings")


@pytest.mark.parametrize("sentence", EXAMPLES)
def test_examples(sentence):
    sentences.assert_said(EXAMPLES[sentence])


def test_every_family_is_an_example():
    assert [each["config"]["model_type"] for each in EXAMPLES["Defaults of families."][::2]] == [*FAMILIES]
