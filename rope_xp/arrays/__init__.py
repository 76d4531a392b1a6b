"""Arrays of all libraries: what differs between them, checks, the axis rule, and exact phases."""
