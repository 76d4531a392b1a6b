"""Random prompts of text, images and videos, as types of tokens."""

import numpy as np


def random_prompt(rng, *, frames=False, temporal=1, videos=True, times=range):
    """Types of the tokens, grids of images and of videos in patches, and the runs that the tokens stand for.

    There is text before and after each image and video; with `frames`, also around each frame. `times` gives the time
    steps of a video from their number.
    """
    types, images, films, runs = [], [], [], []
    for kind in rng.integers(0, 3 if videos else 2, size=rng.integers(1, 7)):
        text = int(rng.integers(1, 6))
        types, runs = [*types, *[0] * text], [*runs, text]
        time, height, width = (int(size) for size in rng.integers(1, 6, size=3))
        patches = [2 * height, 2 * width]
        if kind == 1:
            images, grids = [*images, [1, *patches]], [(range(1), height, width)]
        elif kind == 2:
            films = [*films, [time * temporal, *patches]]
            grids = [(range(1), height, width)] * time if frames else [(times(time), height, width)]
        for steps, *_ in grids if kind else ():
            types += [0, *[kind] * len(steps) * height * width, 0]
            runs += [1, (steps, height, width), 1]
    return types, images, films, runs


def hunyuan_prompt(rng):
    """Types of the tokens and grids in patches. Rows of images end with a token, and some images have two more."""
    types, grids = [0] * int(rng.integers(1, 5)), []
    for _ in range(rng.integers(0, 4)):
        height, width = (int(size) for size in rng.integers(1, 8, size=2))
        grids += [[1, 2 * height, 2 * width]]
        types += [1] * (height * (width + 1) + 2 * int(rng.integers(0, 2))) + [0] * int(rng.integers(1, 5))
    return types, grids


def ids_of(types):
    """Ids of tokens: 1 text, 4 images, 5 videos, and 2 and 3 for the text before and after them."""
    shown = np.asarray(types) != 0
    ids, change = np.asarray([1, 4, 5])[types], np.diff(shown.astype(int))
    ids[:-1][change > 0], ids[1:][change < 0] = 2, 3
    return ids.tolist()
