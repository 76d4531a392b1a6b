"""`identify`: which rotary embedding a function computes."""
