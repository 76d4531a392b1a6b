"""A hook of MkDocs: a bug of lunr, which searches the site, is fixed in the theme's worker.

lunr keeps its words as a graph. It merges nodes for which `TokenSet.toString` returns the same text: the character of
each edge and the number of the node that it leads to, without a separator. So edges "a" to node 1 and "2" to node 34
have the same text as "a" to node 12 and "3" to node 4. If words contain digits, different nodes can be merged. Then the
search does not find some words, and raises an error for words that are on no page. lunr has no setting against it.
"""

from pathlib import Path

FIX = """
lunr.TokenSet.prototype.toString = function () {
  const edges = Object.keys(this.edges).sort().map((character) => [character, this.edges[character].id]);
  return this._str || JSON.stringify([this.final, edges]);
};
"""


def on_post_build(config, **_):
    """The theme's worker ends with the fix."""
    (worker,) = Path(config["site_dir"]).glob("assets/javascripts/workers/search.*.min.js")
    with worker.open("a") as file:
        file.write(FIX)
