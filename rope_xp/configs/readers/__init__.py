"""What a config can be read from: files of each format, and command lines of engines."""
