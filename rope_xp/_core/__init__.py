"""The private implementation of the public modules. Names and modules here may change."""
